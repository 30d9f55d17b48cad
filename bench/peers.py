"""The daemon beside llama-server and vLLM's CPU build: same model, machine, run and weight precision.

    python bench/peers.py --models FOLDER [--llama-server FILE] [--vllm FILE] [--rounds 3] [--only bf16,q8_0]

bench/peers.md says how the other servers and the model files are set up. Each round starts every server in turn, waits
until it answers, measures it with ``ebbtide bench`` (streaming ``/v1/completions``) and stops it. Ratios are computed
within a round, between servers whose weights have the same precision.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

STREAMS = (1, 8, 32)
PROMPT_LEN, OUTPUT_LEN, LONG_PROMPT_LEN = 100, 64, 512
START_S, STOP_S, POLL_S = 600.0, 30.0, 0.05


@dataclass(frozen=True, slots=True)
class Server:
    """A server to measure.

    Attributes:
        product: "ebbtide", "llama-server" or "vllm".
        precision: precision of the weights; only servers of one precision are compared.
        command: the command; ``{port}`` stands for the port.
    """

    product: str
    precision: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name in the tables."""
        return f"{self.product} {self.precision}"


class Running:
    """A started server. Starting raises RuntimeError if the server ends early or does not answer within START_S."""

    def __init__(self, server: Server) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in stop)
        command = [part.format(port=port) for part in server.command]
        started = time.monotonic()
        self._process = subprocess.Popen(
            command, env={**os.environ, **server.environment}, stdout=self._log, stderr=self._log
        )
        self._wait_until_it_answers(started + START_S)
        self.ready_s = time.monotonic() - started

    def stop(self) -> None:
        """Stop the server."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def memory_mib(self) -> float:
        """Return the proportional set size of the process and its descendants, in MiB."""
        process = psutil.Process(self._process.pid)
        return sum(one.memory_full_info().pss for one in [process, *process.children(recursive=True)]) / 2**20

    def _wait_until_it_answers(self, deadline: float) -> None:
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._log.seek(0)
                log = self._log.read()
                self.stop()
                raise RuntimeError(f"{self._process.args!r} did not start:\n{log[-3000:]}")
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        """True if the model is loaded: every server then lists it."""
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def bench(url: str, concurrency: int, num_requests: int, prompt_len: int, output_len: int, seed: int) -> dict[str, Any]:
    """Run ``ebbtide bench`` once; returns its result. Raises RuntimeError if a request failed."""
    arguments = {
        "base-url": f"{url}/v1",
        "endpoint": "completions",
        "concurrency": concurrency,
        "num-requests": num_requests,
        "prompt-len": prompt_len,
        "output-len": output_len,
        "warmup": min(concurrency, 2),
        "seed": seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        flags = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "ebbtide.server.cli", "bench", *flags, "--json", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        result: dict[str, Any] = json.loads(path.read_text())["result"]
    if result["errors"]:
        raise RuntimeError(f"{url}: {result['errors']}")
    return result


def measure(server: Server, number: int) -> dict[str, float]:
    """Start the server, measure it and stop it. Speeds are output tokens/s; ``ttft`` is in seconds, ``mib`` in MiB."""
    running = Running(server)
    figures = {"ready_s": running.ready_s, "mib": running.memory_mib()}
    try:
        for streams in STREAMS:
            load = bench(running.url, streams, max(4, 2 * streams), PROMPT_LEN, OUTPUT_LEN, 100 * number + streams)
            figures[str(streams)] = load["totals"]["output_tokens_per_s"]
        long_prompts = bench(running.url, 1, 6, LONG_PROMPT_LEN, 2, 100 * number + 50)
        figures["ttft"] = long_prompts["ttft_ms"]["p50"] / 1000
        figures["mib_loaded"] = running.memory_mib()
    finally:
        running.stop()
    figures["load"] = os.getloadavg()[0]
    return figures


def servers(args: argparse.Namespace) -> list[Server]:
    """Return the servers whose program was given and whose model file exists."""
    found = []
    for precision in args.only.split(","):
        file = args.models / f"smollm2-{precision}.gguf"
        if file.exists():
            found.append(ebbtide_server(precision, file))
        if file.exists() and args.llama_server:
            found.append(llama_server(args.llama_server, precision, file))
        if precision == "bf16" and args.vllm:
            found.append(vllm_server(args.vllm, args.models / "smollm2"))
    return found


def ebbtide_server(precision: str, file: Path) -> Server:
    """The daemon with its defaults; its context is that of the other servers."""
    program = (sys.executable, "-m", "ebbtide.server.cli", "serve", str(file), "--port", "{port}")
    return Server("ebbtide", precision, (*program, "--max-total-tokens", "16384"))


def llama_server(program: str, precision: str, file: Path) -> Server:
    """llama-server with 32 slots of one KV cache and a thread for each core."""
    flags = ("-c", "16384", "-np", "32", "--kv-unified", "-t", str(os.cpu_count()), "--no-webui", "--port", "{port}")
    return Server("llama-server", precision, (program, "-m", str(file), *flags))


def vllm_server(program: str, folder: Path) -> Server:
    """vLLM's CPU build with a KV cache of 1 GiB."""
    flags = ("--dtype", "bfloat16", "--max-model-len", "2048", "--max-num-seqs", "32", "--port", "{port}")
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return Server("vllm", "bf16", (program, "serve", str(folder), *flags), environment)


Rounds = dict[str, list[dict[str, float]]]


def table(rounds: Rounds) -> str:
    """Return the medians of every server as a Markdown table."""
    head = ["", "1 stream", "8 streams", "32 streams", "TTFT of 512 tokens", "ready", "memory at first", "under load"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, figures in rounds.items():
        middle = {key: statistics.median(entry[key] for entry in figures) for key in figures[0]}
        speeds = [f"{middle[str(streams)]:.0f}" for streams in STREAMS]
        rest = [f"{middle['ttft']:.2f} s", f"{middle['ready_s']:.1f} s"]
        sizes = [f"{middle['mib']:.0f} MiB", f"{middle['mib_loaded']:.0f} MiB"]
        lines.append("| " + " | ".join([name, *speeds, *rest, *sizes]) + " |")
    return "\n".join(lines)


def ratios(rounds: Rounds) -> str:
    """Return ebbtide's ratio to the best other server of each precision as a Markdown table: median of the rounds."""
    lines = ["| weights | 1 stream | 8 streams | 32 streams | TTFT of 512 tokens |", "|---|---|---|---|---|"]
    for name, ours in rounds.items():
        product, precision = name.split(" ")
        others = [value for key, value in rounds.items() if key.endswith(f" {precision}") and key != name]
        if product != "ebbtide" or not others:
            continue
        cells = [f"{middle_ratio(ours, others, str(streams), max):.2f}" for streams in STREAMS]
        cells.append(f"{middle_ratio(ours, others, 'ttft', min):.2f}")
        lines.append(f"| {precision} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def middle_ratio(ours: list[dict[str, float]], others: list[list[dict[str, float]]], key: str, best: Any) -> float:
    """Return the median over the rounds of our figure divided by the best of the others in the same round."""
    return statistics.median(
        mine[key] / best(other[number][key] for other in others) for number, mine in enumerate(ours)
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with smollm2-PRECISION.gguf and smollm2/")
    parser.add_argument("--llama-server", help="llama-server program")
    parser.add_argument("--vllm", help="vllm program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="bf16,q8_0,q4_1", help="precisions")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    measured = servers(args)
    rounds: Rounds = {server.name: [] for server in measured}
    for number in range(args.rounds):
        for server in measured:
            figures = measure(server, number)
            rounds[server.name].append(figures)
            print(number, server.name, json.dumps(figures), file=sys.stderr)
        if args.json:
            args.json.write_text(json.dumps(rounds, indent=1))
    print(f"{table(rounds)}\n\n{ratios(rounds)}")


if __name__ == "__main__":
    main()
