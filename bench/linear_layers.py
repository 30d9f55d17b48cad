"""Compares one linear layer in torch and in the compiled code: SmolLM2-135M's head, 576 inputs, 49,152 outputs.

    python bench/linear_layers.py [--threads 2] [--rounds 20] [--rows 1 8 32] [--clock wall|cpu]

The weights are random. Each round runs every variant once. A cell of the table has a variant's shortest time in
milliseconds, and in parentheses the time of torch's bfloat16 variant divided by it. A variant that this build of torch
does not support is shown as "-".
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from cpu_forward import CLOCKS, model_with
from torch import Tensor
from torch.ao.nn.quantized.dynamic import Linear as DynamicLinear
from torch.nn import Linear, functional

from ebbtide.model_runner.kernels.native_build import VECTORS
from ebbtide.model_runner.models.llama_native import NativeLlama

INPUTS, OUTPUTS, GROUP = 576, 49152, 32
Layer = Callable[[Tensor], object]


def float32(weight: Tensor) -> Layer:
    """torch in float32."""
    return lambda x: functional.linear(x.float(), weight)


def bfloat16(weight: Tensor) -> Layer:
    """torch in bfloat16."""
    stored = weight.bfloat16()
    return lambda x: functional.linear(x, stored)


def dynamic_int8(weight: Tensor) -> Layer:
    """Inputs quantized to int8 per tensor, weights in int8."""
    plain = Linear(INPUTS, OUTPUTS, bias=False)
    plain.weight = torch.nn.Parameter(weight)
    quantized = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(plain), {Linear}, dtype=torch.qint8)[0]
    assert isinstance(quantized, DynamicLinear)
    return lambda x: quantized(x.float())


def weight_int8(weight: Tensor) -> Layer:
    """Weights in int8 with a scale per output, inputs in bfloat16."""
    scales = weight.abs().amax(1) / 127
    quants = (weight / scales[:, None]).round().to(torch.int8)
    factors = scales.bfloat16()
    return lambda x: torch._weight_int8pack_mm(x, quants, factors)


def weight_int4(weight: Tensor) -> Layer:
    """Weights in 4 bits with a scale and a zero per 32 inputs, inputs in bfloat16."""
    quants = torch.randint(0, 16, weight.shape, dtype=torch.int32)
    packed = torch._convert_weight_to_int4pack_for_cpu(quants, 1)
    factors = torch.full((INPUTS // GROUP, OUTPUTS, 2), 0.01, dtype=torch.bfloat16)
    return lambda x: torch._weight_int4pack_mm_for_cpu(x, packed, GROUP, factors)


def compiled(weights: str) -> Callable[[Tensor], Layer]:
    """The head of a model with these weights."""

    def build(weight: Tensor) -> Layer:
        model = model_with(weights, VECTORS)
        assert isinstance(model, NativeLlama)
        assert weight.shape == (model.vocab_size, INPUTS)
        return lambda x: model.logits(x.to(model.activation))

    return build


VARIANTS = {
    "torch, bfloat16": bfloat16,
    "torch, float32": float32,
    "torch, dynamic int8": dynamic_int8,
    "torch, _weight_int8pack_mm": weight_int8,
    "torch, _weight_int4pack_mm_for_cpu": weight_int4,
    "compiled, bfloat16": compiled("bfloat16"),
    "compiled, int8": compiled("int8"),
    "compiled, Q4_1": compiled("Q4_1"),
}


def layers() -> dict[str, Layer | None]:
    """Return all variants; None for those that torch refuses."""
    weight = torch.randn(OUTPUTS, INPUTS) * 0.02
    found: dict[str, Layer | None] = {}
    for name, build in VARIANTS.items():
        try:
            layer = build(weight)
            layer(torch.zeros(1, INPUTS, dtype=torch.bfloat16))
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            print(f"{name}: {str(error).splitlines()[0]}")
            found[name] = None
        else:
            found[name] = layer
    return found


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: processor time, for a busy machine")
    arguments = parser.parse_args()
    clock = CLOCKS[arguments.clock]
    torch.set_num_threads(arguments.threads)
    variants = layers()
    best = {(name, rows): float("inf") for name in variants for rows in arguments.rows}
    with torch.inference_mode():
        for _ in range(arguments.rounds):
            for name, rows in best:
                layer, x = variants[name], torch.randn(rows, INPUTS).bfloat16()
                if layer is not None:
                    started = clock()
                    layer(x)
                    best[name, rows] = min(best[name, rows], clock() - started)
    print("| | " + " | ".join(f"{rows} rows" for rows in arguments.rows) + " |")
    print("|---" * (len(arguments.rows) + 1) + "|")
    for name, layer in variants.items():
        cells = [
            "-"
            if layer is None
            else f"{best[name, rows] * 1000:.2f} ({best['torch, bfloat16', rows] / best[name, rows]:.2f})"
            for rows in arguments.rows
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
