"""The forward pass of a Llama-family model on the CPU with several weights, interleaved, in one process.

    python bench/cpu_forward.py [--threads 2] [--rounds 5] [--variant native|no-tiles|avx512|avx2]
        [--weights torch bfloat16 int8 Q4_1] [--clock wall|cpu]

Weights are random, with the sizes of SmolLM2-135M; "torch" is torch's code with bfloat16 weights. Each row of the table
is a step of that many rows after that many tokens, or a prefill. All end with logits; times are the best of the rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import accumulate

import torch

from ebbtide.model_runner.attention import AttentionBackend, cpu_native
from ebbtide.model_runner.batch import ForwardBatch
from ebbtide.model_runner.checkpoint.quantized_rows import QuantizedRows
from ebbtide.model_runner.kernels.llama_forward import WITHOUT_TILES
from ebbtide.model_runner.kernels.native_build import VECTORS
from ebbtide.model_runner.kv.kv_pool import KVPool
from ebbtide.model_runner.layers.rotary import Rotary
from ebbtide.model_runner.models.llama import LlamaModel
from ebbtide.model_runner.models.llama_config import LlamaConfig
from ebbtide.model_runner.models.llama_native import NativeLlama
from ebbtide.model_runner.models.model import Model

CPU = torch.device("cpu")
PAGE_SIZE, MAX_ROWS, MAX_CONTEXT = 16, 128, 8192
STEPS = [(1, 128), (8, 128), (32, 128), (128, 128), (1, 1024), (32, 1024), (1, 8000)]
PREFILLS = [64, 512, 2048]
WEIGHTS = ("torch", "bfloat16", "int8", "Q4_1")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
VARIANTS = {
    "native": VECTORS,
    "no-tiles": WITHOUT_TILES,
    "avx512": ("-march=skylake-avx512", "-mprefer-vector-width=512"),
    "avx2": ("-march=haswell",),
}


def random_model() -> LlamaModel:
    """A model with the sizes of SmolLM2-135M."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden=576,
        intermediate=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        norm_eps=1e-5,
        tied=True,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        qk_norm=False,
        windows=(None,) * 30,
    )
    rotary = Rotary(1e5 ** -(torch.arange(0, 64, 2) / 64), 1.0, dtype=torch.bfloat16)
    torch.manual_seed(0)
    model = LlamaModel(config, rotary, dtype=torch.bfloat16, device=CPU)
    for target in model.targets().values():
        target.normal_(0, 0.02) if target.dim() == 2 else target.fill_(1)
    return model


def model_with(weights: str, vectors: tuple[str, ...]) -> Model:
    """A model with random weights: "torch", "bfloat16", "int8" or "Q4_1"."""
    model = random_model()
    if weights == "torch":
        model.pack()
        return model
    if weights != "Q4_1":
        return NativeLlama.of(model, quantization="int8" if weights == "int8" else "none", vectors=vectors)
    tensors = {name: _random_rows(one) if one.dim() == 2 else one for name, one in model.targets().items()}
    return NativeLlama(model.config, model.rotary, tensors.items(), vectors=vectors)


def _random_rows(weight: torch.Tensor) -> QuantizedRows:
    """Q4_1 blocks of a scale and a minimum, float16, and 32 nibbles."""
    blocks = torch.randint(0, 256, (weight.shape[0], weight.shape[1] // 32, 20), dtype=torch.uint8)
    blocks[..., :4] = torch.tensor([0.004, -0.03], dtype=torch.float16).view(torch.uint8)
    return QuantizedRows("Q4_1", blocks.flatten(1))


def batch_of(table: torch.Tensor, items: list[tuple[int, int]]) -> ForwardBatch:
    """Create items from (first position, number of tokens), each in its own row, with logits after each last token."""
    starts, lens = [start for start, _ in items], [count for _, count in items]
    rows = torch.arange(len(items))
    positions = torch.cat([torch.arange(start, start + count) for start, count in items])
    of_token = rows.repeat_interleave(torch.tensor(lens))
    return ForwardBatch(
        token_ids=positions % 1000,
        positions=positions,
        slots=table[of_token, positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE,
        wanted=torch.tensor([*accumulate(lens)]) - 1,
        item_rows=rows,
        item_ends=torch.tensor([start + count for start, count in items]),
        cu_query_lens=torch.tensor([0, *accumulate(lens)], dtype=torch.int32),
        page_table=table,
        rows=rows.tolist(),
        starts=starts,
        query_lens=lens,
        num_decodes=len(items) if lens[0] == 1 else 0,
    )


def milliseconds(
    model: Model, attention: AttentionBackend, batch: ForwardBatch, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the time of one forward pass with its logits."""
    started = clock()
    with torch.inference_mode():
        attention.plan(batch)
        model.logits(model.forward(batch, attention))
    return (clock() - started) * 1000


def main() -> None:
    """Print one line per case: rows and context, or prompt, the times, and the ratios of the first column to them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variant", choices=VARIANTS, default="native")
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=WEIGHTS)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: processor time, for a busy machine")
    parser.add_argument("--cases", nargs="+", default=None, help='such as "1 rows after 128" (default: all)')
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    models = [model_with(weights, VARIANTS[arguments.variant]) for weights in arguments.weights]
    width = MAX_CONTEXT // PAGE_SIZE
    table = torch.randperm(40 * width)[: 40 * width].int().view(40, width)
    short = torch.randperm(MAX_ROWS * 16).int().view(MAX_ROWS, 16)
    pool = KVPool(models[0].kv_shape, 40 * width, PAGE_SIZE, dtype=torch.bfloat16, device=CPU)
    attention = cpu_native.build(pool)
    clock = CLOCKS[arguments.clock]
    print(f"{'':>20} " + " ".join(f"{weights + ', ms':>13}" for weights in arguments.weights) + "  ratios", flush=True)
    cases = {f"{rows} rows after {past}": [(past, 1)] * rows for rows, past in STEPS}
    cases |= {f"prefill of {count}": [(0, count)] for count in PREFILLS}
    for name in arguments.cases or cases:
        items = cases[name]
        batch = batch_of(short if len(items) > 40 else table, items)
        times = [
            [milliseconds(model, attention, batch, clock) for model in models] for _ in range(arguments.rounds + 1)
        ]
        best = [min(column) for column in zip(*times[1:], strict=True)]
        ratios = " ".join(f"{best[0] / time:.2f}" for time in best[1:])
        print(f"{name:>20} " + " ".join(f"{time:13.1f}" for time in best) + f"  {ratios}", flush=True)


if __name__ == "__main__":
    main()
