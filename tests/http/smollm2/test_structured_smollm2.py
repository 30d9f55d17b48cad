"""SmolLM2 within JSON schemas: whatever it would rather say, its answers are valid, and retractions change none.

Greedy ones, that is: where a grammar leaves thousands of unlikely tokens, a draw among them turns on the last bits of
the logits, and those depend on how the prompt was split, in float32 too.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from ..schemas import check_valid, random_schema, request_of

STREAMS = 16
MAX_TOKENS = 100
FLAGS = ("--dtype", "float32", "--max-total-tokens", "8192")
RETRACTING = ("--test-retract-interval", "7")


@dataclass(frozen=True)
class Answer:
    """The result for one schema."""

    seed: int
    text: str
    finish: str


def ask(url: str, seeds: range, max_tokens: int = MAX_TOKENS) -> list[Answer]:
    """One answer for each seed's schema, several at a time."""
    with httpx.Client(base_url=url, timeout=600) as http, ThreadPoolExecutor(STREAMS) as pool:

        def one(seed: int) -> Answer:
            body = request_of(seed, random_schema(seed)) | {"max_tokens": max_tokens}
            reply = http.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200, (seed, reply.text)
            (choice,) = reply.json()["choices"]
            return Answer(seed, choice["message"]["content"], choice["finish_reason"])

        return list(pool.map(one, seeds))


def check(answers: list[Answer]) -> int:
    """Check that every answer is valid, or truncated and marked so. Returns the number of complete answers."""
    whole = [answer for answer in answers if answer.finish == "stop"]
    for answer in whole:
        check_valid(answer.text, random_schema(answer.seed))
    assert {answer.finish for answer in answers} <= {"stop", "length"}
    return len(whole)


def num_retracted(url: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("ebbtide:num_retracted_requests_total{"))


def greedy(answers: list[Answer]) -> list[Answer]:
    return [answer for answer in answers if request_of(answer.seed, {})["temperature"] == 0]


def test_a_dozen_answers_are_valid_while_requests_are_retracted(start_daemon: Any) -> None:
    url = start_daemon("--max-total-tokens", "8192", *RETRACTING, model="smollm2").url
    assert check(ask(url, range(12), max_tokens=40)) >= 3
    assert num_retracted(url) >= 5


@pytest.mark.soak
def test_two_hundred_answers_are_valid_and_no_retraction_changes_one(start_daemon: Any) -> None:
    seeds = range(1000, 1200)
    plain = ask(start_daemon(*FLAGS, model="smollm2").url, seeds)
    whole = check(plain)
    url = start_daemon(*FLAGS, *RETRACTING, model="smollm2").url
    again = ask(url, seeds)
    check(again)
    changed = sum(one != other for one, other in zip(plain, again, strict=True))
    print(
        f"\n{whole} of {len(plain)} whole, the rest marked length; {num_retracted(url):.0f} retractions changed "
        f"{changed} drawn answers and none of {len(greedy(plain))} greedy ones"
    )
    assert whole >= 100
    assert greedy(again) == greedy(plain)
