"""Open requests are found by the ids of their clients."""

from __future__ import annotations

import asyncio

from ebbtide.tokenizer_mgr.client_ids import ClientIds
from ebbtide.tokenizer_mgr.response_stream import ResponseStream


async def _answers(count: int) -> list[ResponseStream]:
    return [ResponseStream([f"{index}"], 0.0, lambda answer: None) for index in range(count)]


def answers(count: int) -> list[ResponseStream]:
    return asyncio.run(_answers(count))


def test_a_request_is_found_by_each_of_its_ids_until_it_is_removed() -> None:
    (one,) = answers(1)
    ids = ClientIds()
    ids.add(one, ("a", "b", "a"))
    assert ids.find("a") == ids.find("b") == [one]
    ids.remove(one)
    ids.remove(one)
    assert ids.find("a") == ids.find("b") == []


def test_requests_of_one_id_are_all_found_and_leave_one_by_one() -> None:
    one, two, three = answers(3)
    ids = ClientIds()
    ids.add(one, ("same", "own"))
    ids.add(two, ("same",))
    ids.add(three, ("other",))
    assert ids.find("same") == [one, two]
    ids.remove(one)
    assert ids.find("same") == [two]
    assert ids.find("own") == []


def test_the_id_in_an_answer_s_body_means_the_same_request() -> None:
    one, two = answers(2)
    ids = ClientIds()
    ids.add(one, ("a",))
    ids.add(two, ("cmpl-a",))
    assert ids.find("chatcmpl-a") == [one]
    assert ids.find("cmpl-a") == [two, one]
    assert ids.find("cmpl-") == []


def test_no_id_of_a_removed_request_is_kept() -> None:
    ids = ClientIds()
    for answer in answers(100):
        ids.add(answer, ("same", answer.rids[0]))
        ids.remove(answer)
    assert not any(vars(ids).values())
