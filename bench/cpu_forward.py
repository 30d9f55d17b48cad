"""The forward pass of a Llama-family model on the CPU: compiled code against torch, interleaved, in one process.

    python bench/cpu_forward.py [--threads 2] [--rounds 5] [--variant native|no-tiles|avx512|avx2]

Weights are random, in bfloat16, with the sizes of SmolLM2-135M. Each row of the table is a step of that many rows after
that many tokens, or a prefill. Both implementations end with logits; times are the best of the rounds.
"""

from __future__ import annotations

import argparse
import time
from itertools import accumulate

import torch

from ebbtide.model_runner.attention import AttentionBackend, cpu_native
from ebbtide.model_runner.batch import ForwardBatch
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


def milliseconds(model: Model, attention: AttentionBackend, batch: ForwardBatch) -> float:
    """Return the time of one forward pass with its logits."""
    started = time.perf_counter()
    with torch.inference_mode():
        attention.plan(batch)
        model.logits(model.forward(batch, attention))
    return (time.perf_counter() - started) * 1000


def main() -> None:
    """Print one line per case: rows, context or prompt, both times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variant", choices=VARIANTS, default="native")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    compiled, through_torch = NativeLlama.of(random_model(), vectors=VARIANTS[arguments.variant]), random_model()
    through_torch.pack()
    width = MAX_CONTEXT // PAGE_SIZE
    table = torch.randperm(40 * width)[: 40 * width].int().view(40, width)
    short = torch.randperm(MAX_ROWS * 16).int().view(MAX_ROWS, 16)
    pool = KVPool(compiled.kv_shape, 40 * width, PAGE_SIZE, dtype=torch.bfloat16, device=CPU)
    attention = cpu_native.build(pool)
    print(f"{'case':>24} {'torch, ms':>10} {'compiled, ms':>13} {'ratio':>6}")
    cases = {f"{rows} rows after {past}": [(past, 1)] * rows for rows, past in STEPS}
    cases |= {f"prefill of {count}": [(0, count)] for count in PREFILLS}
    for name, items in cases.items():
        batch = batch_of(short if len(items) > 40 else table, items)
        times = [
            (milliseconds(through_torch, attention, batch), milliseconds(compiled, attention, batch))
            for _ in range(arguments.rounds + 1)
        ][1:]
        slow, fast = (min(column) for column in zip(*times, strict=True))
        print(f"{name:>24} {slow:10.1f} {fast:13.1f} {slow / fast:6.1f}", flush=True)


if __name__ == "__main__":
    main()
