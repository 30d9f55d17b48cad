"""Models with quantized weights compute what their dequantized weights compute, on every instruction set.

With AMX, their linear layers round the weights to bfloat16. Otherwise they quantize the inputs to int8, with a scale
for each 32 of them.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from ebbtide.model_runner.checkpoint.quantized_rows import KINDS, quantized
from ebbtide.model_runner.kernels.llama_forward import load_kernels
from ebbtide.model_runner.kernels.native_build import VECTORS
from ebbtide.model_runner.models.llama_native import NativeLlama

from . import test_llama_native
from .quantized_llama import SIZES, Stored, kind_of, plain, torch_model, weights_of
from .small_llama import small_llama
from .test_llama_native import CAPABILITIES, HAS, VARIANTS, answers, assert_close, assert_same_in_chunks, truth

INSTRUCTION_SETS = {"native": VECTORS} | VARIANTS


def model_of(weights: dict[str, Stored], variant: str = "native") -> NativeLlama:
    if variant != "native" and not CAPABILITIES.get(HAS[variant]):
        pytest.skip(f"this CPU has no {HAS[variant]}")
    base = small_llama(SIZES)
    return NativeLlama(base.config, base.rotary, weights.items(), vectors=INSTRUCTION_SETS[variant])


@pytest.fixture(scope="module", params=[*KINDS, "mixed"])
def weights(request: pytest.FixtureRequest) -> dict[str, Stored]:
    """See ``kind_of``."""
    return weights_of(partial(kind_of, request.param))


@pytest.fixture(scope="module")
def wanted(weights: dict[str, Stored]) -> list[Tensor]:
    return truth(SIZES, torch_model(weights))


@pytest.mark.parametrize("variant", INSTRUCTION_SETS)
def test_quantized_weights_compute_what_their_dequantized_weights_compute(
    variant: str, weights: dict[str, Stored], wanted: list[Tensor]
) -> None:
    model = model_of(weights, variant)
    found = answers(model, SIZES)
    assert_close(found, wanted, factor=2)
    if has_tiles(variant):  # rounds like weights that are dequantized at the start
        dequantized = answers(model_of(dict(plain(weights)), variant), SIZES)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, dequantized, strict=True))
    for row in (1, 3):
        assert_same_in_chunks(model, SIZES, row, found[row])


def has_tiles(variant: str) -> bool:
    """True if the code uses AMX tiles."""
    return variant == "native" and load_kernels().has_tiles() == 1


def rounded_inputs(states: Tensor) -> Tensor:
    """The inputs that a quantized layer multiplies, float64: rounded to 1/127 of the greatest of each 32."""
    groups = states.float().view(len(states), -1, 32)
    greatest = groups.abs().amax(-1, keepdim=True)
    inverse = torch.full_like(greatest, 127) / greatest  # torch computes 127 / x with two roundings
    quants = (groups.double() * inverse.double()).nan_to_num().round()  # rounded once, as by a fused addition
    return (quants * (greatest / 127).double()).flatten(1)


@pytest.mark.parametrize("variant", INSTRUCTION_SETS)
def test_a_linear_layer_multiplies_rounded_numbers_exactly(variant: str, weights: dict[str, Stored]) -> None:
    """All products are exact, and few sums are rounded. A row has the same bits in every batch."""
    model, head = model_of(weights, variant), "lm_head.weight"
    states = torch.randn(300, SIZES.hidden, generator=torch.Generator().manual_seed(5)).to(model.activation)
    states[2], states[3, 32:64] = 0, 0
    inputs, matrix = states.double(), plain(weights)[head]
    if has_tiles(variant):
        matrix = matrix.bfloat16()
    elif not isinstance(weights[head], Tensor):
        inputs = rounded_inputs(states)
    matrix = matrix.double()
    found = model.logits(states)
    most = (inputs.abs() @ matrix.abs().T).clamp(min=1e-30)  # an error is relative to the sum without signs
    assert ((found - inputs @ matrix.T).abs() / most).max() < 1e-6
    for first, last in ((0, 1), (1, 9), (9, 24), (24, 57), (57, 300)):
        assert torch.equal(model.logits(states[first:last]), found[first:last])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_an_input_that_is_not_finite_makes_its_row_invalid_and_no_other(bad: float) -> None:
    model = model_of(weights_of(partial(kind_of, "Q4_1")))
    states = torch.ones(20, SIZES.hidden, dtype=model.activation)
    expected = model.logits(states)
    states[7, 40] = bad
    found = model.logits(states)
    assert not found[7].isfinite().any()
    assert torch.equal(found[8:], expected[8:])
    assert torch.equal(found[:7], expected[:7])


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    weights, threads, results = weights_of(partial(kind_of, "mixed")), torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(torch.cat(answers(model_of(weights), SIZES)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


@pytest.mark.soak
@pytest.mark.parametrize("variant", INSTRUCTION_SETS)
def test_the_level_of_optimization_does_not_change_a_bit(variant: str) -> None:
    """The compiler must not decide which products and sums are rounded together."""
    weights = weights_of(partial(kind_of, "mixed"))
    expected, base = torch.cat(answers(model_of(weights, variant), SIZES)), small_llama(SIZES)
    vectors = (*INSTRUCTION_SETS[variant], "-O1")
    model = NativeLlama(base.config, base.rotary, weights.items(), vectors=vectors)
    assert torch.equal(torch.cat(answers(model, SIZES)), expected)


def int8_values(weight: Tensor) -> Tensor:
    """The weights that are multiplied instead, with zeros up to a multiple of 32."""
    quants = quantized(weight)
    return quants.values.view(torch.int8) * quants.fields[0].float().repeat_interleave(32, 1)


def test_int8_weights_are_within_half_a_step_of_the_weights() -> None:
    weight = torch.randn(40, 72, generator=torch.Generator().manual_seed(1))
    weight[3] = 0
    values = int8_values(weight)
    steps = quantized(weight).fields[0].float().repeat_interleave(32, 1)
    # The scale itself is rounded to float16, by 2^-11 at most.
    assert ((values[:, :72] - weight).abs() <= steps[:, :72] * (0.5 + 127 / 2048)).all()
    assert not values[:, 72:].any()
    assert not values[3].any()


@pytest.mark.parametrize("name", ["plain", "sizes that are no multiples", "biases"])
def test_a_model_in_int8_computes_with_its_rounded_weights(name: str) -> None:
    sizes = test_llama_native.SIZES[name]
    model, rounded = NativeLlama.of(small_llama(sizes), quantization="int8"), small_llama(sizes, torch.float32)
    for target in rounded.targets().values():
        if target.dim() == 2:
            target.copy_(int8_values(target)[:, : target.shape[1]])
    assert_close(answers(model, sizes), truth(sizes, rounded), factor=2)
    assert model.weight_bytes < 0.65 * NativeLlama.of(small_llama(sizes)).weight_bytes
    assert "(Q8_0)" in model.weights_text()
