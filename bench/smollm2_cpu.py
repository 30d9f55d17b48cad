"""SmolLM2 on the CPU: the daemon against ``transformers`` generate, interleaved, in one run.

    python bench/smollm2_cpu.py [--rounds 3] [--dtype bfloat16] [--json FILE]

Each round measures in turn: one stream of transformers, one stream through the daemon, 32 streams through the daemon
(``ebbtide bench``). Only the ratios are meaningful: the absolute numbers depend on the machine and its other load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from daemon import Daemon

from ebbtide.tokenization.model_files import smollm2_path

PROMPT_LEN, OUTPUT_LEN = 64, 128
GENERATE = """
import sys, time, torch
from pathlib import Path
from transformers import GenerationConfig
from gguf_to_safetensors import read_model
path, dtype, prompt_len, output_len = Path(sys.argv[1]), getattr(torch, sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
model = read_model(path, dtype)
model.generation_config = GenerationConfig(pad_token_id=0)
print("ready", flush=True)
for line in sys.stdin:
    ids = torch.randint(100, 40000, (1, prompt_len))
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=output_len, do_sample=False)
    print(output_len / (time.perf_counter() - started), flush=True)
"""


class Transformers:
    """A process that generates once per input line."""

    def __init__(self, dtype: str) -> None:
        arguments = [str(smollm2_path()), dtype, str(PROMPT_LEN), str(OUTPUT_LEN)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", GENERATE, *arguments],
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def tokens_per_s(self) -> float:
        """Output tokens per second of one generation, its prefill included."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def bench(daemon: Daemon, concurrency: int, num_requests: int, seed: int) -> dict[str, float]:
    """Run ``ebbtide bench`` once; returns its totals."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        arguments = ["--concurrency", concurrency, "--num-requests", num_requests, "--seed", seed, "--warmup", 1]
        lengths = ["--prompt-len", PROMPT_LEN, "--output-len", OUTPUT_LEN, "--json", result]
        command = [sys.executable, "-m", "ebbtide.server.cli", "bench", "--base-url", f"{daemon.url}/v1"]
        subprocess.run([*command, *map(str, arguments + lengths)], check=True, stdout=subprocess.DEVNULL)
        totals: dict[str, float] = json.loads(result.read_text())["result"]["totals"]
        return totals


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    daemon = Daemon("--dtype", args.dtype, "--max-total-tokens", "32768")
    reference = Transformers(args.dtype)
    rounds = []
    for number in range(args.rounds):
        generate = reference.tokens_per_s()
        single = bench(daemon, 1, 3, seed=1000 * number + 1)
        batch = bench(daemon, 32, 64, seed=1000 * number + 2)
        rounds.append({"generate": generate, "single": single, "batch": batch, "load": os.getloadavg()[0]})
        print(number, f"generate {generate:.1f}", json.dumps(single), json.dumps(batch), file=sys.stderr)
    daemon.close()
    reference.close()
    if args.json:
        args.json.write_text(json.dumps(rounds, indent=1))
    for name, ratio in ratios(rounds).items():
        print(f"{name:40} {ratio:6.2f}")


def ratios(rounds: list[dict[str, object]]) -> dict[str, float]:
    """Medians over the rounds; each ratio is taken within its round."""
    speed = "output_tokens_per_s"
    single = [entry["single"][speed] for entry in rounds]  # type: ignore[index]
    batch = [entry["batch"][speed] for entry in rounds]  # type: ignore[index]
    generate = [float(entry["generate"]) for entry in rounds]  # type: ignore[arg-type]
    return {
        "transformers, tokens/s": statistics.median(generate),
        "daemon, 1 stream, tokens/s": statistics.median(single),
        "daemon, 32 streams, tokens/s": statistics.median(batch),
        "1 stream / transformers": statistics.median(a / b for a, b in zip(single, generate, strict=True)),
        "32 streams / 1 stream": statistics.median(a / b for a, b in zip(batch, single, strict=True)),
    }


if __name__ == "__main__":
    main()
