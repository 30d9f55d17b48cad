"""The official clients retry after the time in Retry-After if the daemon has no room or is paused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import openai
import pytest

from ..http.audit import send, within
from ..http.conftest import Api

ENDLESS = {"prompt": "tide", "max_tokens": 3000, "ignore_eos": True, "stream": True}
HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def busy(start_shared_daemon: Any) -> Iterator[Api]:
    flags = ("--max-running-requests", "1", "--max-queued-requests", "1", "--sim-step-ms", "5")
    with contextlib.closing(Api(start_shared_daemon(*flags).url)) as api:
        yield api


def hooks(refused: Callable[[], object]) -> Any:
    """Call ``refused`` for every reply that is an error."""
    return {"response": [lambda reply: refused() if reply.status_code >= 400 else None]}


def by_openai(url: str, refused: Callable[[], object]) -> str:
    """An answer through the openai package; ``refused`` is called for each refused attempt."""
    http = openai.DefaultHttpxClient(event_hooks=hooks(refused))
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=5, http_client=http) as client:
        answer = client.chat.completions.create(model="sim", messages=HELLO, max_tokens=1)
    return answer.choices[0].finish_reason


def by_anthropic(url: str, refused: Callable[[], object]) -> str:
    """The same through the anthropic package."""
    anthropic = pytest.importorskip("anthropic")
    http = anthropic.DefaultHttpxClient(event_hooks=hooks(refused))
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=5, http_client=http) as client:
        return str(client.messages.create(model="sim", messages=HELLO, max_tokens=1).stop_reason)


@pytest.mark.parametrize(("ask", "finish"), [(by_openai, "length"), (by_anthropic, "max_tokens")])
def test_a_request_refused_by_a_full_queue_is_retried(busy: Api, ask: Any, finish: str) -> None:
    refusals: list[int] = []
    with contextlib.ExitStack() as connections:

        def refused() -> None:
            refusals.append(1)
            connections.close()

        def reads_one(name: str) -> bool:
            return busy.metric(name) == 1

        for name in ("num_running_reqs", "num_queue_reqs"):
            connections.enter_context(send(busy.url, ENDLESS))
            within(10, partial(reads_one, name))
        assert ask(busy.url, refused) == finish
    assert refusals


def test_the_client_retries_until_a_pause_ends(busy: Api) -> None:
    refusals: list[int] = []

    def refused() -> None:
        refusals.append(1)
        if len(refusals) == 2:
            busy.http.post("/continue_generation").raise_for_status()

    busy.http.post("/pause_generation").raise_for_status()
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask, busy.url, refused) for ask in (by_openai, by_anthropic)]
    assert [answer.result() for answer in answers] == ["length", "max_tokens"]
    assert len(refusals) == 2
