"""The smallest and the largest value that a client may send for each sampling parameter leave a token to sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import torch
from msgspec import Meta
from msgspec.structs import replace

from ebbtide.messages import SamplingParams
from ebbtide.model_runner.sampling.sampler import Sampler, SampleSpec
from ebbtide.model_runner.sim.sim_sampling import SimRow, choose
from ebbtide.plan import RowInit
from ebbtide.server.api.generation_request import SamplingOptions
from ebbtide.tokenization.vocabulary import SIM_EOS, SIM_VOCAB_SIZE

SMALLEST = math.ulp(0.0)


def ranges(hint: Any) -> Iterator[Meta]:
    """Yield the limits of the numbers in a type hint."""
    if get_origin(hint) is Annotated:
        yield from (meta for meta in hint.__metadata__ if isinstance(meta, Meta))
    for part in get_args(hint):
        yield from ranges(part)


def extremes() -> Iterator[tuple[str, float]]:
    hints = get_type_hints(SamplingOptions, include_extras=True)
    fields = SamplingParams.__struct_fields__
    for name, hint in hints.items():
        for limits in ranges(hint) if name in fields and name not in ("logit_bias", "stop_token_ids") else ():
            if float in get_args(hint) or "float" in str(hint):
                yield name, SMALLEST if limits.gt == 0 else float(limits.ge or 0)
                yield name, float(limits.le or limits.lt or 1e300)


EXTREMES = sorted(set(extremes()))


def test_the_list_has_the_parameters_that_change_logits() -> None:
    assert {name for name, _ in EXTREMES} == {
        "temperature",
        "top_p",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    }


@pytest.mark.parametrize(("name", "value"), EXTREMES)
@pytest.mark.parametrize("temperature", [0.0, SMALLEST, 1.0, 2.0])
def test_an_extreme_value_leaves_a_token(name: str, value: float, temperature: float) -> None:
    sampling = replace(SamplingParams(max_tokens=9, temperature=temperature, seed=1), **{name: value})
    init = RowInit(sampling, 60, list(range(64)))
    logits = torch.linspace(-60, 60, SIM_VOCAB_SIZE)[torch.randperm(SIM_VOCAB_SIZE)][None]
    sampler = Sampler(1, SIM_VOCAB_SIZE, (SIM_EOS,))
    sampler.start_row(sampler.stage_row(0, init))
    sampled = sampler.sample(logits, sampler.stage([SampleSpec(0, 64)]))
    assert 0 <= int(sampled.tokens[0]) < SIM_VOCAB_SIZE
    token, _ = choose(SimRow.of(init), 12345, 4)
    assert 0 <= token < SIM_VOCAB_SIZE
