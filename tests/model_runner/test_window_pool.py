"""Models with sliding windows, over a KV pool for the windows: the scheduler, the real runner, and transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch

from ebbtide.config import SchedulerConfig
from ebbtide.messages import GenerateReq, OpenSessionReq, PoolInfo, SamplingParams, SessionTurn

from .changed_checkpoints import changed_copy
from .driver import load_runner
from .families import VOCAB_SIZE, WINDOW
from .poisoned_load import PoisonedLoad, serve
from .reference import greedy, load_reference

NUM_TOKENS = 12
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
PAGE, POOL_TOKENS = 8, 1024
IN_EVERY_RUN = ("mistral", "gemma3", "gpt_oss")
LONG_RUN = ("gemma2", "cohere2", "olmo3", "exaone4")
SOAK = [pytest.param(name, marks=pytest.mark.soak) for name in LONG_RUN]
ALL = [*IN_EVERY_RUN, *SOAK]
MOST = ["mistral", "gemma3", pytest.param("gpt_oss", marks=pytest.mark.soak), *SOAK]


@dataclass(frozen=True)
class Truth:
    """Prompts, and the output of transformers for each."""

    prompts: list[list[int]]
    outputs: list[list[int]]


def random_prompts() -> list[list[int]]:
    """16 prompts, shorter and longer than the window, a page and several chunks. Half of them begin alike."""
    generator = torch.Generator().manual_seed(11)
    lengths = [1, 5, 13, 20, WINDOW - 1, WINDOW, WINDOW + 1, 33, 50, 64, 75, 90, 100, 17, 41, 120]
    prompts = [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]
    for index in range(8, 15):
        prompts[index][:16] = prompts[15][:16]
    return prompts


@pytest.fixture(scope="module")
def truth(tiny: Callable[[str], Path]) -> Callable[[str], Truth]:
    known: dict[str, Truth] = {}

    def of(family: str) -> Truth:
        if family not in known:
            model, prompts = load_reference(tiny(family)), random_prompts()
            known[family] = Truth(prompts, [greedy(model, prompt, NUM_TOKENS) for prompt in prompts])
        return known[family]

    return of


def config(**options: object) -> SchedulerConfig:
    return SchedulerConfig(**({"chunked_prefill_size": 20, "memory_check": "strict"} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ALL)
def test_a_batch_with_a_window_pool_gives_the_output_of_transformers(
    family: str, tiny: Callable[[str], Path], truth: Callable[[str], Truth]
) -> None:
    expected = truth(family)
    runner = load_runner(tiny(family), page_size=PAGE, max_total_tokens=POOL_TOKENS * 2, swa_full_tokens_ratio=0.5)
    assert [pool.window for pool in runner.info.pools] == [None, WINDOW]
    outputs, load = serve(runner, config(), expected.prompts, GREEDY)
    assert outputs == expected.outputs
    assert load.num_cached > 0
    retracts = config(test_retract_interval=1, chunked_prefill_size=64)
    outputs, load = serve(runner, retracts, expected.prompts, GREEDY)
    assert outputs == expected.outputs
    assert load.num_retractions > 20


@pytest.mark.parametrize("family", MOST)
def test_pools_that_are_too_small_for_the_batch_change_no_output(
    family: str, tiny: Callable[[str], Path], truth: Callable[[str], Truth]
) -> None:
    expected = truth(family)
    runner = load_runner(tiny(family), page_size=PAGE, max_total_tokens=400, swa_full_tokens_ratio=0.3)
    policy = config(retraction_risk=0.999, disable_radix_cache=family in {"mistral", "gpt_oss"})
    outputs, _ = serve(runner, policy, expected.prompts, GREEDY)
    assert outputs == expected.outputs


@pytest.mark.parametrize("family", MOST)
def test_a_request_alone_holds_its_window_only(
    family: str, tiny: Callable[[str], Path], truth: Callable[[str], Truth]
) -> None:
    expected = truth(family)
    # The smallest pool of a window: two windows and one page.
    runner = load_runner(tiny(family), page_size=PAGE, max_total_tokens=POOL_TOKENS, swa_full_tokens_ratio=0.01)
    assert runner.info.pools[1] == PoolInfo(2 * WINDOW // PAGE + 1, PAGE, "swa", WINDOW)
    for index in (0, 6, 15):
        outputs, load = serve(runner, config(), [expected.prompts[index]], GREEDY)
        assert outputs == [expected.outputs[index]]
    assert load.num_freed["swa"] > runner.info.pools[1].num_pages  # its pages were used more than once


@pytest.mark.parametrize(("family", "page_size"), [("mistral", 1), ("mistral", 64), ("qwen2", 1), ("qwen2", 16)])
def test_compiled_code_gives_the_same_bits_with_and_without_a_window_pool(
    family: str, page_size: int, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """All layers of this Mistral have the window, and two of three layers of this Qwen2."""
    fields = {"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 1, "layer_types": None}
    folder = tiny(family) if family == "mistral" else changed_copy(tiny(family), tmp_path / "m", **fields)
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True, logprobs=3)
    loads: list[PoisonedLoad] = []
    for disabled in (True, False):
        runner = load_runner(
            folder,
            dtype="bfloat16",
            page_size=page_size,
            max_total_tokens=POOL_TOKENS * 2,
            swa_full_tokens_ratio=1.0,
            disable_hybrid_swa_memory=disabled,
            deterministic=True,
        )
        assert len(runner.info.pools) == (1 if disabled else 2)
        loads.append(serve(runner, config(test_retract_interval=3), random_prompts(), params)[1])
    assert loads[0].tokens == loads[1].tokens
    assert loads[0].logprobs == loads[1].logprobs


@pytest.mark.parametrize("family", MOST)
def test_requests_restored_from_the_host_give_the_output_of_transformers(
    family: str, tiny: Callable[[str], Path], truth: Callable[[str], Truth]
) -> None:
    expected = truth(family)
    runner = load_runner(tiny(family), page_size=PAGE, max_total_tokens=POOL_TOKENS * 2, kv_offload_gb=1 / 256)
    full, window = runner.info.pools
    assert runner.info.more_host_pages == (-(-runner.info.num_host_pages * window.num_pages // full.num_pages),)
    # Restoring is always cheaper, whatever the measured costs.
    runner.info = msgspec.structs.replace(runner.info, recompute_token_s=1.0, restore_token_s=1e-9)
    outputs, load = serve(runner, config(test_retract_interval=2), expected.prompts, GREEDY)
    assert outputs == expected.outputs
    assert load.num_restored > 0


@pytest.mark.parametrize("family", ALL)
def test_turns_of_a_session_give_the_output_of_the_whole_conversation(family: str, tiny: Callable[[str], Path]) -> None:
    model = load_reference(tiny(family))
    runner = load_runner(tiny(family), page_size=PAGE, max_total_tokens=POOL_TOKENS, swa_full_tokens_ratio=0.1)
    load = PoisonedLoad(runner, config(enable_streaming_session=True, disable_radix_cache=True))
    load.run(OpenSessionReq("call", "s", streaming=True))
    params = msgspec.structs.replace(GREEDY, max_tokens=4)
    conversation: list[int] = []
    for turn in range(20):
        prompt = [(turn * 37 + place * 11) % 500 + 3 for place in range(1 + turn * 5 % 13)]
        load.run(GenerateReq((str(turn),), prompt, params, session=SessionTurn("s")))
        conversation += prompt
        assert load.tokens[str(turn)] == greedy(model, conversation, 4)
        conversation += load.tokens[str(turn)]
    assert load.num_cached > len(conversation)


def test_a_setting_that_needs_one_pool_is_logged(tiny: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    runner = load_runner(tiny("gemma2"), disable_hybrid_swa_memory=True)
    assert len(runner.info.pools) == 1
    sentence = "2 of 3 layers read a sliding window, but keep the K/V of all tokens: --disable-hybrid-swa-memory"
    assert sentence in caplog.messages


def test_a_window_as_long_as_the_context_needs_no_pool(tiny: Callable[[str], Path]) -> None:
    assert len(load_runner(tiny("gemma2"), context_length=WINDOW).info.pools) == 1
    assert len(load_runner(tiny("gemma2"), context_length=WINDOW + 1).info.pools) == 2


def test_sizes_are_logged_and_add_up(tiny: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    info = load_runner(tiny("gemma3"), max_total_tokens=4096, page_size=16, swa_full_tokens_ratio=0.25).info
    assert info.pools == (PoolInfo(256, 16), PoolInfo(64, 16, "swa", WINDOW))
    assert info.pool_bytes == (4096 * 1 + 1024 * 6) * 2 * 2 * 16 * 4  # K and V of two heads of 16 numbers
    sentence = "6 of 7 layers read a sliding window of 24 tokens and have a KV pool of their own"
    assert any(message.startswith(sentence) for message in caplog.messages)


def test_a_model_whose_layers_all_have_a_window_needs_no_memory_for_the_first_pool(tiny: Callable[[str], Path]) -> None:
    info = load_runner(tiny("mistral"), max_total_tokens=4096, page_size=16, swa_full_tokens_ratio=0.25).info
    assert [pool.num_pages for pool in info.pools] == [256, 64]
    assert info.pool_bytes == 1024 * 3 * 2 * 2 * 16 * 4
