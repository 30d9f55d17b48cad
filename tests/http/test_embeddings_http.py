"""Embeddings and chats in one small pool: equal to those of single requests, and released after a disconnect."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .audit import LIMIT_S, send, within

ENDED = ("num_requests_total", "num_aborted_requests_total")


def vectors(api: Any, texts: list[str]) -> list[list[float]]:
    reply = api.http.post("/v1/embeddings", json={"input": texts})
    assert reply.status_code == 200, reply.text
    return [entry["embedding"] for entry in reply.json()["data"]]


def balanced(api: Any) -> bool:
    totals = api.totals()
    return bool(totals["num_received_requests_total"] == sum(totals[name] for name in ENDED))


def test_embeddings_under_pressure_equal_those_of_an_idle_server(slow_api: Any) -> None:
    texts = [f"{number}: " + "the tide goes out and comes back " * (number % 9) for number in range(24)]
    alone = {text: vectors(slow_api, [text])[0] for text in texts}
    slow_api.http.post("/flush_cache", params={"timeout": 10})
    retracted = slow_api.metric("num_retracted_requests_total")
    with ThreadPoolExecutor(8) as pool:
        chats = [
            pool.submit(slow_api.complete, f"chat {number}", max_tokens=200, ignore_eos=True) for number in range(5)
        ]
        batches = [pool.submit(vectors, slow_api, texts[start::3]) for start in range(3)]
        for start, batch in enumerate(batches):
            assert batch.result() == [alone[text] for text in texts[start::3]]
        assert [chat.result()["usage"]["completion_tokens"] for chat in chats] == [200] * 5
    assert slow_api.metric("num_retracted_requests_total") > retracted
    within(LIMIT_S, lambda: slow_api.load() == 0 and balanced(slow_api))


def test_a_client_that_leaves_ends_its_embeddings(slow_api: Any) -> None:
    before = slow_api.metric("num_aborted_requests_total")
    connection = send(slow_api.url, {"input": ["x" * 900, "y" * 900, "z" * 900]}, "/v1/embeddings")
    within(10, lambda: slow_api.metric("num_running_reqs") > 0)
    connection.close()
    within(LIMIT_S, lambda: slow_api.load() == 0 and balanced(slow_api))
    assert slow_api.metric("num_aborted_requests_total") > before
