"""Structured output of a complete daemon with the simulated model, requested with OpenAI's client."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from .conftest import Api
from .schemas import check_valid, random_schema

ASK = [{"role": "user", "content": "Describe a boat."}]


class Boat(BaseModel):
    """The type that the client's ``parse`` converts to a strict schema."""

    name: Literal["Ada", "Bessie", "Carl"]
    length_m: int
    colours: list[Literal["red", "green"]]


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_parses_the_answer(api: Api, stream: bool) -> None:
    request: Any = {"model": "sim", "messages": ASK, "response_format": Boat, "max_tokens": 4000, "seed": 3}
    boost = {str(ord(c)): 30 for c in '}]",'}  # otherwise the answer of the simulated model is long
    if stream:
        with api.openai.chat.completions.stream(**request, logit_bias=boost) as events:
            answer = events.get_final_completion()
    else:
        answer = api.openai.chat.completions.parse(**request, logit_bias=boost)
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Boat)


def test_every_choice_has_its_own_position_in_the_grammar(api: Api) -> None:
    body = api.complete("x", regex="[a-z]{3}-[0-9]{2,40}\\.", n=8, max_tokens=60, seed=1)
    answers = [choice["text"] for choice in body["choices"] if choice["finish_reason"] == "stop"]
    assert len(set(answers)) > 1
    assert all(re.fullmatch("[a-z]{3}-[0-9]{2,40}\\.", answer) for answer in answers)


def test_a_stream_has_the_same_text(api: Api) -> None:
    fields = {"structured_outputs": {"choice": ["the sea 🌊", "größer"]}, "temperature": 0, "max_tokens": 50}
    whole = api.complete("x", **fields)["choices"][0]
    chunks = [event["choices"][0] for event in api.stream("x", **fields) if event != "[DONE]"]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert whole["text"] in ("the sea 🌊", "größer")
    assert chunks[-1]["finish_reason"] == whole["finish_reason"] == "stop"


def test_a_truncated_answer_is_marked_as_such(api: Api) -> None:
    body = api.complete("x", response_format={"type": "json_object"}, max_tokens=1)
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("{", "length")


def test_every_prompt_of_a_batch_has_the_grammar(api: Api) -> None:
    for prompt in (["one", "two"], [[1, 2, 3], [4]]):
        body = api.complete(prompt, ebnf='root ::= "yes" | "no"', max_tokens=9)
        assert {choice["text"] for choice in body["choices"]} <= {"yes", "no"}


def test_fifty_schemas_are_enforced_and_compiled_outside_the_event_loop(api: Api) -> None:
    before = api.metric("grammar_compilation_time_seconds_count")
    whole = 0
    boost = {str(ord(c)): 30 for c in '}]",'}
    for seed in range(300, 350):
        schema = random_schema(seed)
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        choice = api.complete("x", response_format=form, max_tokens=300, seed=seed, logit_bias=boost)["choices"][0]
        assert choice["finish_reason"] in ("stop", "length")
        if choice["finish_reason"] == "stop":
            check_valid(choice["text"], schema)
            whole += 1
    assert whole > 25
    assert api.metric("grammar_compilation_time_seconds_count") > before
    assert api.metric("num_grammar_queue_reqs") == 0


def test_a_refusal_comes_before_the_stream(api: Api) -> None:
    reply = api.http.post("/v1/completions", json={"prompt": "x", "stream": True, "regex": "(unclosed"})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "regex", "invalid_value")
