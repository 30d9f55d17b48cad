"""Sampling compared with slow references and with the expected distributions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ebbtide.errors import PlanError
from ebbtide.messages import SamplingParams
from ebbtide.model_runner.sampling import top_p_top_k
from ebbtide.model_runner.sampling.sampler import INVALID_LOGITS, Sampled, Sampler, SampleSpec
from ebbtide.model_runner.sampling.top_p_top_k import Draw, draw_tokens, draw_with_torch, stage_draws, uniform
from ebbtide.plan import RowInit

EOS = 2


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=100, **changes)


def logits_of(rows: int, vocab_size: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def drawn_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with compiled code and without it, as on a machine without a compiler."""
    if request.param == "torch":
        monkeypatch.setattr(top_p_top_k, "load_draw_tokens", lambda: None)


def draw_many(logits: Tensor, count: int, **changes: Any) -> Tensor:
    """The draws of one row of logits for output tokens 0..count-1."""
    draws = {index: Draw(params(**changes), index) for index in range(count)}
    return draw_tokens(logits.expand(count, -1), stage_draws(draws, logits.shape[1]))


def run(sampler: Sampler, logits: Tensor, *specs: SampleSpec) -> Sampled:
    inputs = sampler.stage(list(specs))
    sampled = sampler.sample(logits, inputs)
    sampler.note(inputs, sampled.tokens.clamp(min=0))
    return sampled


def sample(logits: Tensor, *rows: RowInit, position: int = 9) -> list[int]:
    sampler = Sampler(len(rows), logits.shape[1], (EOS,))
    for row, init in enumerate(rows):
        sampler.start_row(sampler.stage_row(row, init))
    return run(sampler, logits, *(SampleSpec(row, position) for row in range(len(rows)))).tokens.tolist()


# ---------------------------------------------------------------------- the random number


def test_uniform_numbers_fill_the_unit_interval() -> None:
    values = [uniform(seed, index) for seed in range(100) for index in range(100)]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 1 for value in values)
    counts = torch.histc(torch.tensor(values), bins=20, min=0, max=1)
    chi_square = ((counts - 500) ** 2 / 500).sum().item()
    assert chi_square < 50  # 19 degrees of freedom: p = 0.0001


def test_uniform_numbers_of_negative_seeds_are_their_own() -> None:
    assert len({uniform(seed, 3) for seed in (-1, 1, 0, -(1 << 63), (1 << 63) - 1)}) == 5


def test_uniform_numbers_are_the_same_on_every_machine() -> None:
    assert uniform(0, 0) == 0.6524484863740321
    assert uniform(123, 45) == 0.49855474835046154


# ---------------------------------------------------------------------- the distribution


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    logits = logits_of(1, 12)
    counts = torch.bincount(draw_many(logits, 20000, temperature=temperature, seed=11), minlength=12)
    expected = (logits[0] / temperature).softmax(-1) * 20000
    assert (((counts - expected) ** 2) / expected).sum() < 40  # 11 degrees of freedom: p = 0.00004


def kept_by_definition(logits: Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Apply top_k, then top_p to the remaining tokens, then min_p; of equal tokens, those with smaller ids are kept."""
    probs = logits.double().softmax(-1).tolist()
    order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    order = order[: top_k or len(order)]
    total, running, kept = sum(probs[token] for token in order), 0.0, []
    for token in order:
        if running >= top_p * total:
            break
        kept.append(token)
        running += probs[token]
    return {token for token in kept if probs[token] >= min_p * probs[order[0]]}


@pytest.mark.parametrize("top_k", [0, 1, 5])
@pytest.mark.parametrize("top_p", [1.0, 0.8, 0.01])
@pytest.mark.parametrize("min_p", [0.0, 0.2])
def test_filters_keep_exactly_what_their_definition_says(top_k: int, top_p: float, min_p: float) -> None:
    logits = logits_of(1, 16, seed=3)
    drawn = draw_many(logits, 3000, temperature=1.0, seed=1, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = kept_by_definition(logits[0], top_k, top_p, min_p)
    likely = {token for token in expected if logits[0].softmax(-1)[token] > 0.005}
    assert likely <= set(drawn.tolist()) <= expected


def test_ties_at_the_border_go_to_the_smaller_ids() -> None:
    drawn = draw_many(torch.zeros(1, 10), 500, temperature=1.0, top_k=3)
    assert set(drawn.tolist()) == {0, 1, 2}


def test_top_p_is_exact_when_more_tokens_pass_than_are_sorted_first() -> None:
    logits = torch.zeros(1, 5000)
    drawn = draw_many(logits, 400, temperature=1.0, top_p=0.5)
    assert 2300 < int(drawn.max()) < 2500


@pytest.mark.parametrize("vocab_size", [7, 1000, 49152])
def test_compiled_code_draws_the_tokens_that_torch_draws(vocab_size: int) -> None:
    logits = logits_of(96, vocab_size, seed=8) * 2
    logits[5, vocab_size // 2 :] = -math.inf
    filters: list[dict[str, Any]] = [
        {},
        {"top_k": 3},
        {"top_p": 0.9},
        {"min_p": 0.05},
        {"top_k": 50, "top_p": 0.5},
        {"top_k": 1000, "top_p": 0.999, "min_p": 1e-4},
    ]
    draws = {n: Draw(params(temperature=0.3 + n / 50, seed=n, **filters[n % 6]), n) for n in range(96)}
    inputs = stage_draws(draws, vocab_size)
    tokens = draw_tokens(logits, inputs)
    probs = (logits.double() / inputs.temperatures[:, None]).softmax(-1)
    for row, (ours, theirs) in enumerate(zip(tokens.tolist(), draw_with_torch(logits, inputs).tolist(), strict=True)):
        # They may differ only where the number lies within rounding of the border between two tokens.
        between = probs[row, min(ours, theirs) + 1 : max(ours, theirs)].sum()
        assert between < 1e-5, (row, ours, theirs)
    assert (tokens == draw_with_torch(logits, inputs)).sum() >= 94


def test_a_row_without_a_probability_draws_some_token() -> None:
    logits = logits_of(4, 300)
    logits[1], logits[2], logits[3, 7] = math.nan, -math.inf, math.inf
    draws = {n: Draw(params(temperature=1.0, top_p=0.5, seed=3), 0) for n in range(4)}
    tokens = draw_tokens(logits, stage_draws(draws, 300)).tolist()
    assert all(0 <= token < 300 for token in tokens)
    assert tokens[0] == draw_tokens(logits[:1], stage_draws({0: draws[0]}, 300)).item()


# ---------------------------------------------------------------------- nothing but seed, index and logits


def test_a_draw_does_not_depend_on_the_rest_of_the_batch() -> None:
    logits = logits_of(24, 3000, seed=5)
    filters: list[dict[str, Any]] = [
        {},
        {"top_p": 0.9},
        {"top_k": 40},
        {"min_p": 0.1},
        {"top_k": 2000, "top_p": 0.999},
        {"temperature": 0.0},
    ]
    inits = [RowInit(params(seed=row, **filters[row % 6]), 5) for row in range(24)]
    together = sample(logits, *inits)
    assert [sample(logits[row : row + 1], init)[0] for row, init in enumerate(inits)] == together


def test_a_draw_can_be_repeated_at_any_time() -> None:
    logits = logits_of(1, 500)
    init = RowInit(params(seed=42), prompt_len=4)
    first = [sample(logits, init, position=position)[0] for position in range(3, 40)]
    again = [sample(logits, init, position=position)[0] for position in reversed(range(3, 40))]
    assert first == again[::-1]
    assert len(set(first)) > 5


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_a_row_with_invalid_logits_does_not_affect_other_rows(garbage: float) -> None:
    logits = logits_of(3, 50)
    inits = [RowInit(params(seed=1), 1), RowInit(params(seed=2, top_p=0.9), 1), RowInit(params(temperature=0.0), 1)]
    clean = sample(logits, *inits)
    for row in range(3):
        dirty = logits.clone()
        dirty[row] = garbage
        tokens = sample(dirty, *inits)
        assert [tokens[other] for other in range(3) if other != row] == [clean[o] for o in range(3) if o != row]
        assert tokens[row] == INVALID_LOGITS


# ---------------------------------------------------------------------- penalties, bias, bans


def penalized_slowly(logits: Tensor, init: RowInit, outputs: list[int]) -> Tensor:
    """The definition, token by token."""
    changed = logits.clone()
    p = init.sampling
    for token in set(init.known[: init.prompt_len]) | set(outputs):
        value = changed[token]
        changed[token] = value / p.repetition_penalty if value > 0 else value * p.repetition_penalty
    for token in set(outputs):
        changed[token] -= p.presence_penalty + p.frequency_penalty * outputs.count(token)
    return changed


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.7},
        {"presence_penalty": 1.1},
        {"frequency_penalty": 0.6},
        {"frequency_penalty": -0.5, "presence_penalty": 0.4, "repetition_penalty": 1.2},
    ],
)
def test_penalties_follow_their_definition_with_tokens_sampled_here(penalties: dict[str, float]) -> None:
    prompt, outputs = [3, 4, 4, 5], [6, 3, 6]
    init = RowInit(params(temperature=0.0, **penalties), len(prompt), prompt + outputs)
    sampler = Sampler(1, 20, (EOS,))
    sampler.start_row(sampler.stage_row(0, init))
    logits = logits_of(1, 20, seed=9)
    for position in range(len(prompt) + len(outputs) - 1, 40):
        expected = int(penalized_slowly(logits[0], init, outputs).argmax())
        assert run(sampler, logits, SampleSpec(0, position)).tokens.tolist() == [expected]
        outputs.append(expected)
    assert len(set(outputs)) > 2


def test_bias_moves_bans_and_forces() -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0, 0.0]])
    assert sample(logits, RowInit(params(temperature=0.0, logit_bias={1: 1.5}), 1)) == [1]
    assert sample(logits, RowInit(params(temperature=0.0, logit_bias={0: -100}), 1)) == [1]
    assert sample(logits, RowInit(params(temperature=2.0, logit_bias={3: 100}), 1)) == [3]


def test_no_end_before_min_tokens() -> None:
    logits = torch.tensor([[1.0, 0.0, 5.0, 4.0]])
    init = RowInit(params(temperature=0.0, min_tokens=2, stop_token_ids=(3,)), prompt_len=10)
    assert sample(logits, init, position=9) == [0]
    assert sample(logits, init, position=10) == [0]
    assert sample(logits, init, position=11) == [EOS]


def test_ignored_eos_is_a_token_like_any_other() -> None:
    logits = torch.tensor([[1.0, 0.0, 5.0, 4.0]])
    init = RowInit(params(temperature=0.0, min_tokens=2, ignore_eos=True), prompt_len=10)
    assert sample(logits, init) == [EOS]


def test_token_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(PlanError, match="token ids outside"):
        Sampler(1, 10, (EOS,)).stage_row(0, RowInit(params(logit_bias={10: 1.0}), 1))


def test_sampling_a_row_that_was_never_started_is_refused() -> None:
    with pytest.raises(PlanError, match="never started"):
        Sampler(1, 10, (EOS,)).stage([SampleSpec(0, 0)])


# ---------------------------------------------------------------------- log-probabilities


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = logits_of(3, 30)
    inits = [
        RowInit(params(temperature=0.7, seed=3, logprobs=2, logit_bias={4: 100}), 1),
        RowInit(params(temperature=0.0), 1),
        RowInit(params(temperature=0.0, logprobs=0), 1),
    ]
    sampler = Sampler(3, 30, (EOS,))
    for row, init in enumerate(inits):
        sampler.start_row(sampler.stage_row(row, init))
    sampled = run(sampler, logits, *(SampleSpec(row, 5) for row in range(3)))
    assert sampled.logprobs is not None
    assert (sampled.logprobs.asked, sampled.logprobs.counts) == ([0, 2], [2, 0])
    truth = logits.log_softmax(-1)
    assert sampled.tokens[0] == 4
    torch.testing.assert_close(sampled.logprobs.chosen, torch.stack((truth[0, 4], truth[2].max())))
    torch.testing.assert_close(sampled.logprobs.top_values[0], truth[0].topk(2).values)
    assert sampled.logprobs.top_ids[0].tolist() == truth[0].topk(2).indices.tolist()


def test_a_mask_allows_only_its_tokens_and_affects_only_its_row() -> None:
    sampler = Sampler(2, 10, (EOS,))
    for row in range(2):
        sampler.start_row(sampler.stage_row(row, RowInit(SamplingParams(max_tokens=9, temperature=0.0), 1)))
    logits = torch.arange(20.0).reshape(2, 10)
    before = logits.clone()
    mask = bytes([0b0000_1100, 0b10])  # ids 2, 3 and 9
    assert run(sampler, logits, SampleSpec(0, 0, mask), SampleSpec(1, 0)).tokens.tolist() == [9, 9]
    mask = bytes([0b0000_1100, 0b00])
    assert run(sampler, logits, SampleSpec(0, 0, mask), SampleSpec(1, 0)).tokens.tolist() == [3, 9]
    assert torch.equal(logits, before)


def test_a_mask_of_too_few_ids_is_refused() -> None:
    sampler = Sampler(1, 10, (EOS,))
    sampler.start_row(sampler.stage_row(0, RowInit(SamplingParams(max_tokens=9, temperature=0.0), 1)))
    with pytest.raises(PlanError, match="A mask has 8 bits for 10"):
        run(sampler, torch.zeros(1, 10), SampleSpec(0, 0, b"\xff"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_without_tokens_gives_no_token_and_affects_only_its_row(temperature: float) -> None:
    sampler = Sampler(3, 10, (EOS,))
    params = SamplingParams(max_tokens=9, temperature=temperature, top_k=1, frequency_penalty=1.0, logprobs=2)
    for row in range(3):
        sampler.start_row(sampler.stage_row(row, RowInit(params, 1)))
    specs = [SampleSpec(0, 0), SampleSpec(1, 0, bytes(2)), SampleSpec(2, 0)]
    sampled = run(sampler, torch.arange(30.0).reshape(3, 10), *specs)
    assert sampled.tokens.tolist() == [9, -1, 9]
    assert sampled.logprobs is not None
    assert sampled.logprobs.chosen.isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "more",
    [
        {"logit_bias": {2: -100.0, 3: -100.0}},
        {"logit_bias": {7: 100.0, 8: 100.0}},
        {"min_tokens": 5, "stop_token_ids": (2, 3)},
        {"top_k": 1},
        {"min_p": 1.0},
    ],
)
def test_a_mask_has_priority_over_bans_and_forced_tokens(temperature: float, more: dict[str, Any]) -> None:
    sampler = Sampler(1, 10, (EOS,))
    params = SamplingParams(max_tokens=9, temperature=temperature, **more)
    sampler.start_row(sampler.stage_row(0, RowInit(params, 1)))
    for seed in range(20):
        logits = torch.randn(1, 10, generator=torch.Generator().manual_seed(seed)) * 10
        (token,) = run(sampler, logits, SampleSpec(0, 0, bytes([0b0000_1100, 0]))).tokens.tolist()
        assert token in (2, 3)
        if temperature == 0:
            assert token == logits[0, 2:4].argmax() + 2


def test_a_ban_still_holds_within_a_mask() -> None:
    sampler = Sampler(1, 10, (EOS,))
    sampler.start_row(
        sampler.stage_row(0, RowInit(SamplingParams(max_tokens=9, temperature=0.0, logit_bias={3: -100.0}), 1))
    )
    assert run(sampler, torch.arange(10.0)[None], SampleSpec(0, 0, bytes([0b0000_1100, 0]))).tokens.tolist() == [2]
