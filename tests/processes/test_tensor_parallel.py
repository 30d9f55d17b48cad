"""Tensor-parallel ranks on the CPU: the tokens of one process, and one outcome per request when a rank fails."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..model_runner.checkpoints import write_checkpoint
from ..model_runner.reference import greedy, load_reference
from .streaming import error_at_the_end, streams

PROMPT = [17, 300, 45, 9, 120, 77, 451, 33, 260, 5, 88]
PROMPTS = [PROMPT * 5, PROMPT, PROMPT[3:] * 2, PROMPT[:1]]
NUM_TOKENS = 24
STUCK = 70
TIMEOUT_S = 3.0
FLAGS = ("--dtype", "float32")


def tokens_of(url: str, prompt: list[int], num_tokens: int = NUM_TOKENS) -> list[int]:
    """The greedy tokens of a request."""
    fields = {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    reply = httpx.post(f"{url}/generate", json={"input_ids": prompt, "sampling_params": fields}, timeout=100)
    assert reply.status_code == 200, reply.text
    return [int(token) for token in reply.json()["output_ids"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with per-head norms and two KV heads."""
    return write_checkpoint(tmp_path_factory.mktemp("ranks") / "qwen3", "qwen3")


def open_streams(url: str, folder: Path, count: int) -> Any:
    """Streams that last for hundreds of steps."""
    return streams(url, count, model=folder.name, prompt=PROMPT, max_tokens=480, temperature=0)


@pytest.mark.parametrize(
    ("family", "ranks"),
    [
        ("qwen3", 2),
        *(pytest.param(family, 2, marks=pytest.mark.soak) for family in ("llama", "mistral", "qwen2")),
        *(pytest.param(family, 4, marks=pytest.mark.soak) for family in ("llama", "qwen2")),
    ],
)
def test_ranks_give_the_tokens_of_the_reference_under_retraction(
    family: str, ranks: int, tmp_path: Path, start_daemon: Any
) -> None:
    """Four ranks have one of the two KV heads each."""
    folder = write_checkpoint(tmp_path / family, family)
    flags = ("--tp", str(ranks), "--max-total-tokens", "160", "--test-retract-interval", "7")
    daemon = start_daemon(*FLAGS, *flags, model=str(folder))
    assert {f"rank-{rank}" for rank in range(1, ranks)} < set(daemon.pids)
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = list(pool.map(lambda prompt: tokens_of(daemon.url, prompt), PROMPTS))
    reference = load_reference(folder)
    assert found == [greedy(reference, prompt, NUM_TOKENS) for prompt in PROMPTS]
    page = httpx.get(f"{daemon.url}/metrics", timeout=60).text
    (retracted,) = [line for line in page.splitlines() if line.startswith("ebbtide:num_retracted_requests_total{")]
    assert float(retracted.split()[-1]) > 0


def test_a_rank_that_continues_changes_nothing_and_the_engine_restarts_after_a_killed_one(
    folder: Path, start_daemon: Any
) -> None:
    daemon = start_daemon(*FLAGS, "--tp", "2", "--restart-on-failure", "1", model=str(folder))
    expected = tokens_of(daemon.url, PROMPT, 400)
    os.kill(daemon.pids["rank-1"], signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(tokens_of, daemon.url, PROMPT, 400)
        while _idle(httpx.get(f"{daemon.url}/metrics", timeout=60).text):
            assert not answer.done()
        os.kill(daemon.pids["rank-1"], signal.SIGCONT)
        assert answer.result() == expected
    with open_streams(daemon.url, folder, 3) as opened:
        os.kill(daemon.pids["rank-1"], signal.SIGKILL)
        assert [error_at_the_end(events)["code"] for events in opened] == ["engine_dead"] * 3
    while httpx.get(f"{daemon.url}/ready", timeout=60).status_code != 200:
        assert daemon.process.poll() is None, daemon.log
    assert tokens_of(daemon.url, PROMPT, 400) == expected


def test_a_stopped_rank_ends_the_streams_and_the_daemon(folder: Path, start_daemon: Any) -> None:
    daemon = start_daemon(*FLAGS, "--tp", "2", "--watchdog-timeout", f"{TIMEOUT_S}", model=str(folder))
    with open_streams(daemon.url, folder, 2) as opened:
        os.kill(daemon.pids["rank-1"], signal.SIGSTOP)
        assert [error_at_the_end(events)["code"] for events in opened] == ["engine_dead"] * 2
    assert daemon.wait() == STUCK
    assert daemon.leftovers() == []


def _idle(page: str) -> bool:
    (line,) = [line for line in page.splitlines() if line.startswith("ebbtide:open_http_requests{")]
    return float(line.split()[-1]) == 0


def test_ranks_that_cannot_share_the_heads_are_refused_in_one_sentence(folder: Path, start_daemon: Any) -> None:
    daemon = start_daemon(*FLAGS, "--tp", "3", model=str(folder), ready=False)
    assert daemon.wait() == 1
    assert daemon.log.splitlines()[-1] == "ebbtide: --tp 3 does not divide the 4 attention heads of qwen3."
    assert "Traceback" not in daemon.log
