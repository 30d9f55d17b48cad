"""Streaming sessions on real models with a pool for sliding windows give the output of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ebbtide.config import SchedulerConfig
from ebbtide.messages import GenerateReq, OpenSessionReq, SamplingParams, SessionTurn
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.scheduler.build import build_scheduler
from ebbtide.scheduler.core import Scheduler

from .driver import load_runner
from .families import VOCAB_SIZE, WINDOW
from .reference import greedy, load_reference

NUM_TOKENS = 6
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
PAGE = 8


def run(scheduler: Scheduler, runner: ModelRunner, *requests: GenerateReq) -> tuple[list[int], int]:
    """Run requests to their end. Returns the tokens of the first one, and the number of its cached tokens."""
    scheduler.receive(requests, 0.0)
    tokens: list[int] = []
    num_cached = 0
    while not scheduler.idle:
        plan = scheduler.next_step(0.0)
        assert plan is not None
        runner.submit(plan)
        scheduler.settle(runner.collect())
        for item in scheduler.take_output().items:
            if item.rid == requests[0].rids[0]:
                tokens += item.tokens
                num_cached += item.start.cached_tokens if item.start else 0
        scheduler.self_check_during_busy()
    scheduler.on_idle()
    return tokens, num_cached


def converse(tiny: Callable[[str], Path], family: str, num_turns: int, **options: object) -> None:
    """Each turn has 1 to 24 new tokens. A plain request runs beside it."""
    model = load_reference(tiny(family))
    runner = load_runner(tiny(family), page_size=PAGE, max_total_tokens=1024, swa_full_tokens_ratio=0.5)
    assert [pool.window for pool in runner.info.pools] == [None, WINDOW]
    config = SchedulerConfig(
        chunked_prefill_size=20,
        memory_check="strict",
        enable_streaming_session=True,
        **options,  # type: ignore[arg-type]
    )
    scheduler = build_scheduler(config, runner.info)
    scheduler.receive([OpenSessionReq("open", "s", streaming=True)], 0.0)
    generator = torch.Generator().manual_seed(5)
    conversation: list[int] = []
    for index in range(num_turns):
        words, other = (
            torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()
            for length in (1 + index * 11 % 24, 30)
        )
        turn = GenerateReq((f"t{index}",), words, GREEDY, session=SessionTurn("s"))
        tokens, num_cached = run(scheduler, runner, turn, GenerateReq((f"p{index}",), other, GREEDY))
        assert tokens == greedy(model, conversation + words, NUM_TOKENS)
        assert max(len(conversation) - PAGE, 0) <= num_cached <= len(conversation)
        conversation += words + tokens


@pytest.mark.parametrize("disable_radix_cache", [False, True], ids=["radix", "no prefix cache"])
def test_every_turn_equals_the_whole_conversation(tiny: Callable[[str], Path], disable_radix_cache: bool) -> None:
    converse(tiny, "mistral", 6, disable_radix_cache=disable_radix_cache)


def test_every_turn_equals_the_whole_conversation_with_forced_retractions(tiny: Callable[[str], Path]) -> None:
    converse(tiny, "gemma3", 5, test_retract_interval=2)


@pytest.mark.soak
@pytest.mark.parametrize("interval", [0, 1])
@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3", "gpt_oss", "cohere2", "olmo3", "exaone4"])
def test_every_turn_of_20_equals_the_whole_conversation(
    tiny: Callable[[str], Path], family: str, interval: int
) -> None:
    converse(tiny, family, 20, test_retract_interval=interval)
