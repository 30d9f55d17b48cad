"""The joined parts of a stream equal the answer without stream: text, log-probabilities, ids and finish reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .random_texts import SCRIPTS

PROMPTS = sorted(SCRIPTS)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A scripted prompt with a random end of its answer, stop strings from the answer, and requested details."""
    prompt = draw(st.sampled_from(PROMPTS))
    answer = bytes(SCRIPTS[prompt])
    text = answer.decode("utf-8", "replace")
    fields: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": draw(st.integers(1, len(answer) + 2)),
        "logprobs": draw(st.sampled_from([None, 0, 2])),
        "echo": draw(st.booleans()),
        "n": draw(st.sampled_from([1, 1, 2])),
        "return_token_ids": draw(st.booleans()),
        "prompt_logprobs": draw(st.sampled_from([None, None, 1])),
        "include_stop_str_in_output": draw(st.booleans()),
        "skip_special_tokens": draw(st.booleans()),
    }
    cuts = st.tuples(st.integers(0, len(text) - 1), st.integers(1, 4))
    stops = [text[start : start + length] for start, length in draw(st.lists(cuts, max_size=3))]
    # U+FFFD for an incomplete character at the end is added after the search for stop strings.
    stops = [stop for stop in stops if "\ufffd" not in stop]
    if stops:
        fields["stop"] = stops
    return fields


def streamed(events: list[Any], index: int) -> dict[str, Any]:
    """The joined parts of one choice, in the form of an answer without stream; no part has an incomplete character."""
    parts = [c for event in events for c in event["choices"] if c["index"] == index]
    lists = [part["logprobs"] for part in parts if part["logprobs"] is not None]
    joined: dict[str, Any] = {"index": index, "text": "".join(part["text"] for part in parts)}
    joined["logprobs"] = {key: [e for part in lists for e in part[key]] for key in lists[0]} if lists else None
    for key in ("finish_reason", "stop_reason"):
        joined[key] = parts[-1][key]
    assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
    if any("token_ids" in part for part in parts):
        joined["token_ids"] = [i for part in parts for i in part.get("token_ids", [])]
    for key in ("prompt_logprobs", "prompt_token_ids"):
        said = [part[key] for part in parts if key in part]
        assert len(said) <= 1
        joined |= {key: said[0]} if said else {}
    return joined


def expected_text(fields: dict[str, Any]) -> str:
    """The text of the script, truncated at max_tokens and at the first complete stop string."""
    text = bytes(SCRIPTS[fields["prompt"]])[: fields["max_tokens"]].decode("utf-8", "replace")
    found = [(text.find(stop) + len(stop), -len(stop)) for stop in fields.get("stop", []) if stop in text]
    if found:
        end, minus_length = min(found)
        text = text[: end if fields["include_stop_str_in_output"] else end + minus_length]
    return (fields["prompt"] if fields["echo"] else "") + text


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(fields=requests())
def test_completions_are_equal_with_and_without_stream(api: Any, fields: dict[str, Any]) -> None:
    check(api, fields)


@pytest.mark.soak
@settings(deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
@given(fields=requests())
def test_completions_are_equal_with_and_without_stream_in_a_long_run(api: Any, fields: dict[str, Any]) -> None:
    check(api, fields)


def check(api: Any, fields: dict[str, Any]) -> None:
    """Check that the answers with and without stream equal the script."""
    whole = api.complete(**fields)
    events = api.stream(**fields, stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    for choice in whole["choices"]:
        assert json.dumps(streamed(events[:-1], choice["index"]), sort_keys=True) == json.dumps(choice, sort_keys=True)
        assert choice["text"] == expected_text(fields)
        if choice["logprobs"] is not None:
            check_offsets(choice)
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [events[-2]["usage"][key] for key in counts] == [whole["usage"][key] for key in counts]


def check_offsets(choice: dict[str, Any]) -> None:
    """Check that the offset of every token is the position of its text."""
    offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    assert offsets == sorted(offsets)
    for offset, token in zip(offsets, tokens, strict=True):
        whole_character = len(token) == 1 and token != "\ufffd"
        if whole_character and offset < len(choice["text"]):
            assert choice["text"][offset] == token


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), size=st.integers(1, 40), count=st.integers(0, 3), stops=st.booleans())
def test_chats_are_equal_with_and_without_stream(api: Any, seed: int, size: int, count: int, stops: bool) -> None:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"tell {seed}"}],
        "max_tokens": size,
        "seed": seed,
        "temperature": 1.0,
        "logprobs": True,
        "top_logprobs": count,
        "return_token_ids": True,
    }
    whole = ask_chat(api, fields)
    if stops:
        content = whole["choices"][0]["message"]["content"]
        fields["stop"] = [content[-4:-1]] if len(content) > 4 else ["x"]
        whole = ask_chat(api, fields)
    reply = api.http.post("/v1/chat/completions", json={**fields, "stream": True})
    events = [json.loads(line[6:]) for line in reply.text.split("\n\n") if line.startswith("data: {")]
    parts = [choice for event in events for choice in event["choices"]]
    [choice] = whole["choices"]
    assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]
    entries = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
    assert entries == choice["logprobs"]["content"]
    assert [i for part in parts for i in part.get("token_ids", [])] == choice["token_ids"]
    assert all(len(entry["top_logprobs"]) == count for entry in entries)
    # The most likely tokens differ from position to position.
    if count and len(entries) > 8:
        assert len({json.dumps(entry["top_logprobs"]) for entry in entries}) > 1
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]


def ask_chat(api: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """A chat answer without stream."""
    reply = api.http.post("/v1/chat/completions", json=fields)
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body
