"""The answers of a complete daemon: text, stops, counts and log-probabilities, with and without stream."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from ebbtide.tokenization.vocabulary import SIM_EOS

LONG = {"max_tokens": 600, "temperature": 0}


def text_of(events: list[Any], index: int = 0) -> str:
    """The joined text of one choice."""
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    return "".join(choice["text"] for choice in choices if choice["index"] == index)


@pytest.mark.parametrize(
    "prompt", ["emoji", "alphabet", "near miss", "broken", "separators", "lone bytes", "unscripted"]
)
def test_the_joined_stream_is_the_whole_answer(api: Any, prompt: str) -> None:
    whole = api.complete(prompt, **LONG)
    events = api.stream(prompt, **LONG, stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    assert text_of(events) == whole["choices"][0]["text"]
    finishes = [c["finish_reason"] for event in events[:-1] for c in event["choices"] if c["finish_reason"]]
    assert finishes == [whole["choices"][0]["finish_reason"]]
    assert events[-2]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_characters_of_several_tokens_come_out_whole(api: Any) -> None:
    text = text_of(api.stream("emoji", **LONG))
    assert text == "👩‍👩‍👧 waves 🌊🌊 at größer 日本語 שלום end"
    assert all("\ufffd" not in choice["text"] for e in api.stream("emoji", **LONG)[:-1] for choice in e["choices"])


def test_broken_bytes_become_replacement_signs_by_rule(api: Any) -> None:
    assert api.complete("broken", **LONG)["choices"][0]["text"].startswith("a\ufffd\ufffdb")
    assert set(api.complete("lone bytes", **LONG)["choices"][0]["text"]) == {"\ufffd"}


@pytest.mark.parametrize(
    ("prompt", "stop", "text", "matched"),
    [
        ("alphabet", "DEFGHIJ", "ABC", "DEFGHIJ"),
        ("alphabet", ["XYZ", "C"], "AB", "C"),
        ("alphabet", ["EFG", "DEFG"], "ABC", "DEFG"),
        ("near miss", "STOP", "stop? STO no, ", "STOP"),
        ("emoji", "🌊🌊", "👩‍👩‍👧 waves ", "🌊🌊"),
    ],
)
@pytest.mark.parametrize("keep", [False, True])
def test_a_stop_string_over_several_tokens_never_leaks(
    api: Any, prompt: str, stop: Any, text: str, matched: str, keep: bool
) -> None:
    fields = {"stop": stop, "include_stop_str_in_output": keep, **LONG}
    expected = text + (matched if keep else "")
    body = api.complete(prompt, **fields)
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (expected, "stop", matched)
    assert body["usage"]["completion_tokens"] == len((text + matched).encode())
    assert text_of(api.stream(prompt, **fields)) == expected


def test_a_stop_string_that_never_completes_is_released(api: Any) -> None:
    assert api.complete("alphabet", stop="XYZ!", **LONG)["choices"][0]["text"].startswith("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def test_logprobs_end_with_the_stop_and_are_the_same_in_a_stream(api: Any) -> None:
    free = api.complete("no script", ignore_eos=True, skip_special_tokens=False, temperature=0, max_tokens=40)
    stop = free["choices"][0]["text"][20:23]
    fields = {"stop": stop, "logprobs": 2, "temperature": 0, "ignore_eos": True, "max_tokens": 40}
    choice = api.complete("no script", **fields)["choices"][0]
    assert choice["stop_reason"] == stop
    whole = choice["logprobs"]
    assert "".join(whole["tokens"]) == choice["text"] + stop
    assert whole["text_offset"] == list(range(len(whole["tokens"])))
    assert all(
        max(top.values()) == chosen for top, chosen in zip(whole["top_logprobs"], whole["token_logprobs"], strict=True)
    )
    events = api.stream("no script", **fields)
    streamed = [c["logprobs"] for event in events[:-1] for c in event["choices"] if c["logprobs"]]
    for key in whole:
        assert [entry for part in streamed for entry in part[key]] == whole[key]


def test_a_seed_repeats_an_answer_and_choices_differ(api: Any) -> None:
    fields = {"seed": 7, "n": 3, "max_tokens": 40, "ignore_eos": True, "temperature": 1.0}
    first, second = (api.complete("tide", **fields) for _ in range(2))
    texts = [choice["text"] for choice in first["choices"]]
    assert texts == [choice["text"] for choice in second["choices"]]
    assert len(set(texts)) == 3
    assert first["usage"]["completion_tokens"] == 120


def test_a_text_and_its_ids_are_one_prompt(api: Any) -> None:
    fields = {"temperature": 0, "max_tokens": 20}
    by_text = api.complete(["some text", "b"], **fields)
    by_ids = api.complete([list(b"some text"), list(b"b")], **fields)
    assert [c["text"] for c in by_text["choices"]] == [c["text"] for c in by_ids["choices"]]
    assert by_text["usage"]["prompt_tokens"] == by_ids["usage"]["prompt_tokens"] == 10


def test_logit_bias_bans_and_forces(api: Any) -> None:
    forced = api.complete("x", max_tokens=5, logit_bias={str(ord("Z")): 100}, ignore_eos=True)
    assert forced["choices"][0]["text"] == "ZZZZZ"
    ended = api.complete("x", max_tokens=5, logit_bias={str(SIM_EOS): 100})
    assert (ended["choices"][0]["text"], ended["choices"][0]["finish_reason"]) == ("", "stop")
    assert ended["usage"]["completion_tokens"] == 1
    kept = api.complete("x", max_tokens=5, logit_bias={str(SIM_EOS): 100}, min_tokens=3)
    assert kept["usage"]["completion_tokens"] == 4


def test_a_prompt_seen_before_is_reported_as_cached(api: Any) -> None:
    prompt = "a prompt that nobody else sends, " * 8
    assert api.complete(prompt, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = api.complete(prompt, max_tokens=1)["usage"]
    assert again["prompt_tokens"] - 16 <= again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"]
    salted = api.complete(prompt, max_tokens=1, cache_salt="mine")["usage"]
    assert salted["prompt_tokens_details"]["cached_tokens"] == 0


def test_many_streams_at_once_each_end_properly(api: Any) -> None:
    def one(number: int) -> None:
        fields = {"max_tokens": 1 + number % 60, "n": 1 + number % 2, "temperature": 0, "ignore_eos": number % 3 == 0}
        prompt = "x" * (10 + 53 * number % 3000)
        events = api.stream(prompt, **fields, stream_options={"include_usage": number % 2 == 0})
        assert events.count("[DONE]") == 1
        assert events[-1] == "[DONE]"
        choices = [c for event in events[:-1] for c in event["choices"]]
        assert sorted(c["index"] for c in choices if c["finish_reason"]) == list(range(fields["n"]))
        whole = api.complete(prompt, **fields)
        assert [text_of(events, i) for i in range(fields["n"])] == [c["text"] for c in whole["choices"]]

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(one, range(100)))
    assert api.metric("open_http_requests") == 0


def test_the_official_client_works_unmodified(api: Any) -> None:
    messages = [{"role": "user", "content": "hello"}]
    fields: dict[str, Any] = {"model": "sim", "messages": messages, "temperature": 0, "max_tokens": 30}
    whole = api.openai.chat.completions.create(**fields, logprobs=True, top_logprobs=3)
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    chunks = api.openai.chat.completions.create(**fields, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert [model.id for model in api.openai.models.list()] == ["sim"]
    assert api.openai.models.retrieve("sim").id == "sim"
    with pytest.raises(openai.BadRequestError):
        api.openai.chat.completions.create(**{**fields, "max_tokens": 10**9})

    async def talk() -> str:
        async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(**fields, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(talk()) == text


def test_requests_with_the_same_id_are_not_mixed(api: Any) -> None:
    def one(_: int) -> str:
        reply = api.http.post(
            "/v1/completions", json={"prompt": "alphabet", **LONG, "stop": "Z"}, headers={"x-request-id": "same"}
        )
        return str(reply.json()["choices"][0]["text"])

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(24))) == {"ABCDEFGHIJKLMNOPQRSTUVWXY"}


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [SIM_EOS + 4]},
        {"logit_bias": {"99999999": 1}},
        {"stop_token_ids": [99999999]},
        {"logprobs": 10**6},
        {"n": 10**9},
        {"max_tokens": 10**9},
        {"temperature": 1e308},
        {"prompt": ["ok", ""]},
        {"prompt": ["ok", "x" * 40_000]},
    ],
)
def test_bad_input_is_refused_and_serving_continues(api: Any, fields: dict[str, Any]) -> None:
    for stream in (False, True):
        reply = api.http.post("/v1/completions", json={"prompt": "hi", "stream": stream, **fields})
        assert reply.status_code == 400
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert api.complete("alphabet", stop="D", **LONG)["choices"][0]["text"] == "ABC"


def test_sglangs_route_scores_a_prompt_and_agrees_with_itself(api: Any) -> None:
    body = {"text": "score me", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    params = {"sampling_params": {"max_new_tokens": 0}}
    meta = api.http.post("/generate", json={**body, **params}).json()["meta_info"]
    assert [token for _, token, _ in meta["input_token_logprobs"]] == list(b"score me")
    assert meta["input_token_logprobs"][0][0] is None
    assert all(logprob <= 0 for logprob, _, _ in meta["input_token_logprobs"][1:])
    later = api.http.post("/generate", json={**body, **params, "logprob_start_len": 5}).json()["meta_info"]
    assert later["input_token_logprobs"][1:] == meta["input_token_logprobs"][6:]
    assert later["input_top_logprobs"][1:] == meta["input_top_logprobs"][6:]
