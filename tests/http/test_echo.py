"""The prompt as part of the answer: echo, log-probabilities and token ids, with and without stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ebbtide.tokenization.vocabulary import SIM_EOS, SIM_USER

from .audit import check_idle

FOX = "the quick brown fox"


def choices_of(events: list[Any], index: int = 0) -> list[dict[str, Any]]:
    """One choice's part of every event."""
    return [c for event in events[:-1] for c in event["choices"] if c["index"] == index]


def lists_of(choices: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The parallel lists of a streamed choice, joined."""
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
    return {key: [entry for part in parts for entry in part[key]] for key in parts[0]}


def test_a_prompt_comes_back_in_front_of_its_answer(api: Any) -> None:
    plain = api.complete(FOX, max_tokens=5, temperature=0)
    echoed = api.complete(FOX, max_tokens=5, temperature=0, echo=True)
    assert echoed["choices"][0]["text"] == FOX + plain["choices"][0]["text"]
    assert echoed["choices"][0]["logprobs"] is None
    assert echoed["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    assert echoed["usage"]["prompt_tokens"] == len(FOX)


@pytest.mark.parametrize("max_tokens", [0, 1, 6])
@pytest.mark.parametrize("count", [0, 3])
def test_logprobs_cover_prompt_and_answer(api: Any, max_tokens: int, count: int) -> None:
    body = api.complete(FOX, max_tokens=max_tokens, echo=True, logprobs=count, temperature=0, ignore_eos=True)
    [choice] = body["choices"]
    lists = choice["logprobs"]
    length = len(FOX) + max_tokens
    assert [len(values) for values in lists.values()] == [length] * 4
    assert "".join(lists["tokens"]) == choice["text"]
    assert lists["text_offset"] == list(range(length))
    assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
    for token, value, top in zip(*(lists[k][1:] for k in ("tokens", "token_logprobs", "top_logprobs")), strict=True):
        assert top[token] == value <= max(top.values())
        assert count <= len(top) <= count + 1 or count == 0
    assert body["usage"]["completion_tokens"] == max_tokens
    assert choice["finish_reason"] == "length"
    streamed = choices_of(
        api.stream(FOX, max_tokens=max_tokens, echo=True, logprobs=count, temperature=0, ignore_eos=True)
    )
    assert lists_of(streamed) == lists
    assert "".join(part["text"] for part in streamed) == choice["text"]
    assert streamed[0]["text"].startswith(FOX)


def test_the_answer_scores_the_same_as_a_prompt(api: Any) -> None:
    """Greedy tokens are the most likely ones at their positions, also when they are part of a prompt."""
    fields = {"echo": True, "logprobs": 1}
    whole = api.complete(FOX, max_tokens=12, temperature=0, ignore_eos=True, skip_special_tokens=False, **fields)
    drawn = whole["choices"][0]["logprobs"]
    ids = [*FOX.encode(), *(ord(token) for token in drawn["tokens"][len(FOX) :])]
    scored = api.complete(ids, max_tokens=0, **fields)["choices"][0]["logprobs"]
    assert scored["tokens"] == drawn["tokens"]
    assert scored["token_logprobs"] == drawn["token_logprobs"]
    assert scored["top_logprobs"] == drawn["top_logprobs"]


def test_a_scored_prompt_is_computed_in_full_and_others_may_use_it(api: Any) -> None:
    prompt = "nobody else has this prompt, which is long enough for a page " * 3
    first = api.complete(prompt, max_tokens=0, echo=True, logprobs=0)
    again = api.complete(prompt, max_tokens=0, prompt_logprobs=0)
    assert first["choices"][0]["logprobs"]["token_logprobs"][1:] == [
        entry[str(byte)]["logprob"]
        for byte, entry in zip(prompt.encode()[1:], again["choices"][0]["prompt_logprobs"][1:], strict=True)
    ]
    for body in (first, again):
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert body["usage"]["completion_tokens"] == 0
    assert api.complete(prompt, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    assert api.complete(prompt, max_tokens=0, echo=True)["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


def test_a_prompt_can_be_put_into_the_cache_without_output(api: Any) -> None:
    prompt = "a prefix that several programs share and that one of them computes beforehand " * 3
    warm = api.http.post("/generate", json={"text": prompt, "sampling_params": {"max_new_tokens": 0}}).json()
    assert (warm["text"], warm["output_ids"], warm["meta_info"]["completion_tokens"]) == ("", [], 0)
    assert warm["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert api.complete(prompt, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


def test_prompts_as_ids_are_decoded_like_an_answer(api: Any) -> None:
    ids = [SIM_USER, *"größe".encode(), SIM_EOS]
    hidden = api.complete(ids, max_tokens=0, echo=True, logprobs=0)["choices"][0]
    assert hidden["text"] == "größe"
    assert hidden["logprobs"]["text_offset"] == [0, 0, 1, 2, 2, 3, 3, 4, 5]
    assert hidden["logprobs"]["tokens"][3:7] == ["bytes:\\xc3", "bytes:\\xb6", "bytes:\\xc3", "bytes:\\x9f"]
    shown = api.complete(ids, max_tokens=0, echo=True, logprobs=0, skip_special_tokens=False)["choices"][0]
    assert shown["text"] == "<|user|>größe<|end|>"
    assert shown["logprobs"]["text_offset"] == [0, 8, 9, 10, 10, 11, 11, 12, 13]


def test_half_a_character_at_the_end_of_ids_is_replaced_once(api: Any) -> None:
    ids = [*b"a", *"🌊".encode()[:3]]
    choice = api.complete(ids, max_tokens=0, echo=True, logprobs=0)["choices"][0]
    assert choice["text"] == "a\ufffd"
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 1]


def test_batches_with_several_choices_keep_their_order(api: Any) -> None:
    prompts = ["one", "and two", [*b"three"]]
    fields = {"n": 2, "max_tokens": 3, "echo": True, "logprobs": 1, "seed": 5, "ignore_eos": True, "prompt_logprobs": 2}
    body = api.complete(prompts[:2], **fields)
    texts = [choice["text"] for choice in body["choices"]]
    assert [text[:-3] for text in texts] == ["one", "one", "and two", "and two"]
    assert body["usage"]["prompt_tokens"] == 10
    assert body["usage"]["completion_tokens"] == 12
    first, second = body["choices"][:2]
    assert first["prompt_logprobs"] == second["prompt_logprobs"]
    assert first["logprobs"]["token_logprobs"][:3] == second["logprobs"]["token_logprobs"][:3]
    events = api.stream(prompts[:2], **fields)
    firsts = [event["choices"][0]["index"] for event in events[:-1]]
    assert firsts[:4] == [0, 1, 2, 3]
    for index, choice in enumerate(body["choices"]):
        parts = choices_of(events, index)
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert lists_of(parts) == choice["logprobs"]
        [scores] = [part["prompt_logprobs"] for part in parts if "prompt_logprobs" in part]
        assert scores == choice["prompt_logprobs"]


@pytest.mark.parametrize("stream", [False, True])
def test_vllms_shape_of_prompt_logprobs(api: Any, stream: bool) -> None:
    fields = {"max_tokens": 1, "prompt_logprobs": 2}
    choice = choices_of(api.stream("ab", **fields))[0] if stream else api.complete("ab", **fields)["choices"][0]
    first, second = choice["prompt_logprobs"]
    assert first is None
    assert next(iter(second)) == str(ord("b"))
    assert 2 <= len(second) <= 3
    for key, entry in second.items():
        assert set(entry) == {"logprob", "rank", "decoded_token"}
        assert entry["decoded_token"] == chr(int(key))
    ranks = sorted(entry["rank"] for entry in second.values())
    assert ranks[:2] == [1, 2]
    by_rank = [entry["logprob"] for entry in sorted(second.values(), key=lambda entry: entry["rank"])]
    assert by_rank == sorted(by_rank, reverse=True)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_gives_prompt_logprobs_and_ids_too(api: Any, stream: bool) -> None:
    fields = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "ignore_eos": True, "logprobs": True}
    wishes = {"prompt_logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True, "stream": stream}
    reply = api.http.post("/v1/chat/completions", json={**fields, **wishes})
    assert reply.status_code == 200, reply.text
    if stream:
        events = [api_event for line in reply.text.split("\n\n") if (api_event := parsed(line))]
        [scores] = [event["prompt_logprobs"] for event in events if "prompt_logprobs" in event]
        [prompt] = [event["prompt_token_ids"] for event in events if "prompt_token_ids" in event]
        answer = [i for event in events for c in event["choices"] for i in c.get("token_ids", [])]
        entries = [e for event in events for c in event["choices"] for e in (c["logprobs"] or {}).get("content", [])]
    else:
        body = reply.json()
        scores, prompt = body["prompt_logprobs"], body["prompt_token_ids"]
        answer, entries = body["choices"][0]["token_ids"], body["choices"][0]["logprobs"]["content"]
    assert prompt[:3] == [SIM_USER, *b"hi"]
    assert [scores[0], *(next(iter(entry)) for entry in scores[1:])] == [None, *map(str, prompt[1:])]
    assert len(answer) == 2
    assert [entry["token"] for entry in entries] == [f"token_id:{i}" for i in answer]


def parsed(line: str) -> Any:
    """A ``data:`` line's object; None for the mark at the end."""
    return json.loads(line[6:]) if line.startswith("data: {") else None


def test_a_chat_of_no_tokens_is_only_scored(api: Any) -> None:
    fields = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 0, "prompt_logprobs": 0}
    body = api.http.post("/v1/chat/completions", json=fields).json()
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_ids_of_prompt_and_answer(api: Any, stream: bool) -> None:
    fields = {"max_tokens": 8, "temperature": 0, "return_token_ids": True, "logprobs": 0, "ignore_eos": True}
    named = {**fields, "return_tokens_as_token_ids": True}
    if stream:
        parts = choices_of(api.stream("alphabet", **named))
        ids = [i for part in parts for i in part["token_ids"]]
        [prompt] = [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part]
        lists = lists_of(parts)
    else:
        [choice] = api.complete("alphabet", **named)["choices"]
        ids, prompt, lists = choice["token_ids"], choice["prompt_token_ids"], choice["logprobs"]
    assert (bytes(ids), bytes(prompt)) == (b"ABCDEFGH", b"alphabet")
    assert lists["tokens"] == [f"token_id:{i}" for i in ids]
    assert [list(top) for top in lists["top_logprobs"]] == [[f"token_id:{i}"] for i in ids]


def test_the_token_that_ended_an_answer_is_among_its_ids(api: Any) -> None:
    body = api.complete("alphabet", max_tokens=60, temperature=0, return_token_ids=True)
    assert body["choices"][0]["token_ids"][-1] == SIM_EOS
    assert len(body["choices"][0]["token_ids"]) == body["usage"]["completion_tokens"] == 27


def test_a_harness_gets_loglikelihoods_of_continuations(api: Any) -> None:
    """Evaluation harnesses send contexts and continuations in one batch, and compute log-likelihoods from it."""
    own = api.complete("x", max_tokens=6, temperature=0, ignore_eos=True, skip_special_tokens=False)
    pairs = [("alpha", " beta"), ("a longer context, and", " its end"), ("x", own["choices"][0]["text"])]
    prompts = [[*context.encode(), *continuation.encode()] for context, continuation in pairs]
    for fields, cut in (({"max_tokens": 0}, None), ({"max_tokens": 1, "temperature": 0, "ignore_eos": True}, -1)):
        body = api.complete(prompts, echo=True, logprobs=1, seed=1234, **fields)
        expected = []
        for choice, (context, continuation) in zip(body["choices"], pairs, strict=True):
            lists = choice["logprobs"]
            values = lists["token_logprobs"][len(context) : cut]
            tops = lists["top_logprobs"][len(context) : cut]
            assert len(values) == len(continuation)
            assert sum(values) < 0
            expected.append(all(value == max(top.values()) for value, top in zip(values, tops, strict=True)))
        assert expected == [False, False, True]  # the last one is the model's own


def test_a_prompt_as_long_as_the_context_can_be_scored(slow_api: Any) -> None:
    reply = slow_api.http.post(
        "/v1/completions", json={"prompt": "x" * 1024, "max_tokens": 0, "echo": True, "logprobs": 0}
    )
    assert reply.status_code == 200
    assert len(reply.json()["choices"][0]["logprobs"]["tokens"]) == 1024
    too_long = slow_api.http.post("/v1/completions", json={"prompt": "x" * 1025, "max_tokens": 0, "echo": True})
    assert too_long.status_code == 400
    assert too_long.json()["error"]["code"] == "context_length_exceeded"


def test_a_client_that_leaves_a_long_scoring_leaves_nothing_behind(slow_api: Any) -> None:
    body = {"prompt": "z" * 900, "max_tokens": 0, "echo": True, "logprobs": 5, "stream": True}
    with slow_api.http.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.status_code == 200
        assert next(reply.iter_bytes()) == b": keep-alive\n\n"  # the prompt is sent only as a whole
    check_idle(slow_api)
