"""Sessions over HTTP with the simulated model: the context of a turn, refused turns, and the state at the end."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from .audit import check_idle, check_scrape, send, within
from .conftest import Api
from .sessions import PAGE, Session, code, whole

LONG = {"max_new_tokens": 600}  # about a second


@pytest.fixture(scope="module")
def sessions_api(start_shared_daemon: Any) -> Iterator[Api]:
    """A daemon with sessions, slow enough to interrupt."""
    flags = ("--sim-step-ms", "1", "--max-sessions", "8", "--memory-check", "strict")
    api = Api(start_shared_daemon("--enable-streaming-session", *flags).url)
    yield api
    api.close()


@pytest.fixture(scope="module")
def tight_api(start_shared_daemon: Any) -> Iterator[Api]:
    """A daemon with 64 pages and a short queue, for more sessions than fit."""
    pool = ("--max-total-tokens", "1024", "--context-length", "512", "--max-running-requests", "3")
    flags = ("--max-queued-requests", "4", "--sim-step-ms", "1", "--memory-check", "strict")
    api = Api(start_shared_daemon("--enable-streaming-session", *pool, *flags).url)
    yield api
    api.close()


def check_nothing_held(api: Api) -> None:
    """Check in the next statistics that closed sessions hold no memory."""
    within(2, lambda: api.metric("kv_session_held_tokens") == 0)
    check_idle(api)


@pytest.fixture
def session(sessions_api: Api) -> Iterator[Session]:
    session = Session(sessions_api)
    yield session
    session.close()
    check_nothing_held(sessions_api)


def streamed(session: Session, new: list[int], **sampling: Any) -> Any:
    """A context manager for a turn whose answer is streamed."""
    params = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True, **sampling}
    body = {"input_ids": new, "session_id": session.id, "sampling_params": params, "stream": True}
    return session.api.http.stream("POST", "/generate", json=body)


def begin(reply: httpx.Response) -> Iterator[str]:
    """The lines of a stream whose first chunk has arrived."""
    lines = reply.iter_lines()
    assert next(lines).startswith("data: {")
    return lines


@pytest.mark.parametrize("streaming", [True, False])
def test_a_turn_sees_all_earlier_turns_and_computes_only_what_is_new(sessions_api: Api, streaming: bool) -> None:
    rng = random.Random(1)
    session = Session(sessions_api, streaming=streaming)
    for number in range(8):
        before = len(session.tokens)
        new = [rng.randrange(32, 127) for _ in range(rng.randrange(1, 60))]
        answer = session.turn(new, max_new_tokens=rng.randrange(1, 40))
        assert answer["meta_info"]["cached_tokens"] >= before - PAGE
        info = session.info()
        assert (info["num_turns"], info["num_tokens"]) == (number + 1, len(session.tokens))
    assert session.info()["state"] == ("warm" if streaming else "cold")
    session.close()


@pytest.mark.parametrize("streaming", [True, False])
def test_the_next_turn_has_the_last_token_whatever_the_length(sessions_api: Api, streaming: bool) -> None:
    for num_tokens in (*range(1, 4), *range(11, 16), *range(26, 31), 40):  # ends of pages, and around them
        session = Session(sessions_api, streaming=streaming)
        session.turn([65, 66, 67], max_new_tokens=num_tokens)
        session.turn([68], max_new_tokens=3)
        session.close()


def test_a_plain_session_branches_from_any_turn(sessions_api: Api) -> None:
    session = Session(sessions_api, streaming=False)

    def turn(new: list[int], name: str, **params: Any) -> dict[str, Any]:
        body = {"input_ids": new, "rid": name, "session_params": {"id": session.id, **params}}
        sampling = {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True}
        reply = sessions_api.http.post("/generate", json={**body, "sampling_params": sampling})
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    def expect(answer: dict[str, Any], context: list[int]) -> list[int]:
        assert answer["meta_info"]["prompt_tokens"] == len(context)
        assert answer["output_ids"] == whole(sessions_api, context, max_new_tokens=5)
        output_ids: list[int] = answer["output_ids"]
        return context + output_ids

    first = expect(turn([*b"first"], "a"), [*b"first"])
    second = expect(turn([*b"second"], "b"), [*first, *b"second"])
    expect(turn([*b"other"], "c", rid="a"), [*first, *b"other"])
    expect(turn([*b"more"], "d", rid="b"), [*second, *b"more"])
    expect(turn([*b"cut"], "e", rid="b", offset=4), [*second[:4], *b"cut"])
    expect(turn([*b"again"], "f", rid="a", drop_previous_output=True), [*b"first", *b"again"])
    expect(turn([*b"anew"], "g", rid="a", replace=True), [*first, *b"anew"])
    body = {"text": "x", "session_params": {"id": session.id, "rid": "b"}}
    assert code(sessions_api.http.post("/generate", json=body)) == (404, "turn_not_found")
    body = {"text": "x", "rid": "g", "session_params": {"id": session.id}}
    assert code(sessions_api.http.post("/generate", json=body)) == (409, "duplicate_turn")
    session.close()


@pytest.mark.parametrize("params", [{"rid": "x"}, {"offset": 3}, {"replace": True}, {"drop_previous_output": True}])
def test_a_streaming_session_only_grows(session: Session, params: dict[str, Any]) -> None:
    session.turn([65])
    body = {"text": "x", "session_params": {"id": session.id, **params}}
    assert session.api.http.post("/generate", json=body).status_code == 400
    session.turn([66])


def test_an_overlapping_turn_is_refused_and_the_third_one_is_right(session: Session) -> None:
    session.turn([65, 66])
    with streamed(session, [67], **LONG) as reply:
        lines = begin(reply)
        assert session.info()["state"] == "running"
        for refused in (session.ask([68]), session.chat({"role": "user", "content": "hi"})):
            assert code(refused) == (409, "session_busy")
            assert refused.headers["x-should-retry"] == "false"
        *_, last = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert last["output_ids"] == whole(session.api, [*session.tokens, 67], **LONG)
    session.tokens += [67, *last["output_ids"]]
    session.turn([69])
    assert session.info()["num_turns"] == 3


def test_the_official_client_uses_a_session_and_does_not_repeat_a_refused_turn(session: Session) -> None:
    client = session.api.openai.with_options(max_retries=2)
    extra = {"session_id": session.id, "ignore_eos": True}
    message = {"role": "user", "content": "hi"}
    create = client.chat.completions.create
    first = create(model="sim", messages=[message], max_tokens=20, extra_body=extra)
    second = create(model="sim", messages=[message], max_tokens=20, extra_body=extra)
    assert second.usage.prompt_tokens > first.usage.total_tokens
    refused = session.api.metric("num_aborted_requests_total")
    with streamed(session, [67], **LONG) as reply:
        lines = begin(reply)  # kept: without it the response would be closed
        with pytest.raises(openai.ConflictError):
            create(model="sim", messages=[message], max_tokens=20, extra_body=extra)
        within(2, lambda: session.api.metric("num_aborted_requests_total") > refused)
        assert session.api.metric("num_aborted_requests_total") == refused + 1
        assert any(line == "data: [DONE]" for line in lines)


def test_of_two_first_turns_one_is_the_first(session: Session) -> None:
    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda new: session.ask([new], max_new_tokens=100), (65, 66)))
    assert sorted(map(code, replies)) == [(200, None), (409, "session_busy")]
    [won] = [new for new, reply in zip((65, 66), replies, strict=True) if reply.status_code == 200]
    session.tokens = [won, *whole(session.api, [won], max_new_tokens=100)]
    session.turn([67])


def test_a_turn_whose_client_disconnects_is_discarded(session: Session) -> None:
    session.turn([*b"kept"])
    for number in range(10):
        with streamed(session, [66, 67], **LONG) as reply:
            if number % 2:
                begin(reply)
        refused = session.ask([68])  # at once: it is refused, or it continues the last completed turn
        if refused.status_code == 200:
            answer = refused.json()
            assert answer["meta_info"]["prompt_tokens"] == len(session.tokens) + 1
            session.tokens += [68, *answer["output_ids"]]
        else:
            assert code(refused) == (409, "session_busy")
        within(2, lambda: session.info()["state"] != "running")
        assert session.info()["num_tokens"] == len(session.tokens)
    session.turn([69])


def test_an_aborted_turn_is_discarded(session: Session) -> None:
    session.turn([*b"kept"])
    with streamed(session, [66], **LONG) as reply:
        lines = begin(reply)
        rid = reply.headers["x-request-id"]
        assert session.api.http.post("/abort_request", json={"rid": rid}).json() == {"num_aborted": 1}
        *_, last = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    answer = session.turn([67])
    assert answer["meta_info"]["cached_tokens"] >= len(b"kept") + 8 - PAGE
    assert session.info()["num_turns"] == 2


def test_a_turn_that_times_out_is_discarded(session: Session) -> None:
    session.turn([*b"kept"])
    body = {
        "input_ids": [66],
        "session_id": session.id,
        "timeout": 0.1,
        "sampling_params": {**LONG, "ignore_eos": True},
    }
    assert code(session.api.http.post("/generate", json=body)) == (504, "timeout")
    within(2, lambda: session.info()["state"] != "running")
    session.turn([67])
    assert session.info()["num_turns"] == 2


def test_closing_during_a_turn_lets_it_finish(sessions_api: Api) -> None:
    session = Session(sessions_api)
    with streamed(session, [65], **LONG) as reply:
        lines = begin(reply)
        session.close()
        assert code(session.ask([66])) == (410, "session_closed")
        *_, last = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": LONG["max_new_tokens"]}
    assert last["output_ids"] == whole(sessions_api, [65], **LONG)
    session.close()
    check_nothing_held(sessions_api)


def test_a_running_turn_is_activity(sessions_api: Api) -> None:
    session = Session(sessions_api, timeout=0.3)
    reply = session.ask([65], **LONG)
    assert reply.status_code == 200, "the turn took longer than the session may be idle"
    assert reply.json()["output_ids"] == whole(sessions_api, [65], **LONG)
    within(5, lambda: sessions_api.http.get(f"/v1/sessions/{session.id}").status_code == 410)
    assert code(session.ask([66])) == (410, "session_closed")
    check_nothing_held(sessions_api)


def test_sessions_are_listed_counted_and_limited(sessions_api: Api) -> None:
    opened = [Session(sessions_api) for _ in range(8)]
    assert code(sessions_api.http.post("/v1/sessions")) == (429, "too_many_sessions")
    assert {one["id"] for one in sessions_api.http.get("/v1/sessions").json()["data"]} == {one.id for one in opened}
    within(2, lambda: sessions_api.metric("num_streaming_sessions") == 8)
    body = {"capacity_of_str_len": 1, "session_id": opened[0].id}
    opened[7].close()
    assert code(sessions_api.http.post("/open_session", json=body)) == (409, "session_exists")
    for session in opened:
        session.close()
        session.close()
    assert sessions_api.http.get("/v1/sessions").json()["data"] == []
    within(2, lambda: sessions_api.metric("num_streaming_sessions") == 0)


def test_an_unknown_session_is_404_on_every_route(sessions_api: Api) -> None:
    http = sessions_api.http
    chat = {"messages": [{"role": "user", "content": "x"}], "session_id": "nobody"}
    assert code(http.post("/v1/chat/completions", json=chat)) == (404, "session_not_found")
    assert code(http.post("/v1/completions", json={"prompt": "x", "session_id": "nobody"})) == (
        404,
        "session_not_found",
    )
    assert code(http.post("/generate", json={"text": "x", "session_params": {"id": "nobody"}}))[0] == 404
    assert code(http.get("/v1/sessions/nobody")) == (404, "session_not_found")
    assert http.post("/close_session", json={"session_id": "nobody"}).status_code == 200


@pytest.mark.parametrize("fields", [{"max_tokens": 10}, {}, {"stop": "e"}], ids=str)
def test_a_session_gives_the_answer_of_the_whole_conversation(session: Session, fields: dict[str, Any]) -> None:
    fields = {"max_tokens": 200, "include_stop_str_in_output": True, "seed": 1, **fields}
    messages: list[dict[str, str]] = []
    for number, role in enumerate(["system", "user", "user", "system", "user"]):
        new = [{"role": role, "content": f"{role} says {number}"}]
        reply = session.chat(*new, **fields)
        assert reply.status_code == 200, reply.text
        messages += new
        body = {"messages": messages, "temperature": 0, **fields}
        alone = session.api.http.post("/v1/chat/completions", json=body).json()
        choice, usage = reply.json()["choices"][0], reply.json()["usage"]
        assert choice["message"] == alone["choices"][0]["message"]
        assert choice["finish_reason"] == alone["choices"][0]["finish_reason"]
        assert usage["prompt_tokens"] == alone["usage"]["prompt_tokens"]
        messages += [{"role": "assistant", "content": choice["message"]["content"]}]


def test_a_conversation_that_is_sent_again_is_refused_and_costs_nothing(session: Session) -> None:
    hi, yo = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
    assert session.chat(hi, max_tokens=5).status_code == 200
    before = session.info()["num_tokens"]
    assert code(session.chat(yo, hi)) == (400, "session_chat_unsupported")
    assert session.info()["num_tokens"] == before
    assert session.chat(hi, max_tokens=5).status_code == 200


def test_a_turn_too_long_leaves_the_session_as_it_was(tight_api: Api) -> None:
    session = Session(tight_api)
    session.turn([65] * 400, max_new_tokens=60)
    for too_long in ([66] * 60, [66] * 45, [66] * 600):
        assert code(session.ask(too_long, max_new_tokens=8)) == (400, "context_length_exceeded")
    assert session.chat({"role": "user", "content": "x" * 60}).status_code == 400
    assert session.turn([67], max_new_tokens=8)["meta_info"]["cached_tokens"] >= 460 - PAGE
    session.close()
    check_nothing_held(tight_api)


def test_the_rest_of_the_context_is_what_the_session_has_left(tight_api: Api) -> None:
    session = Session(tight_api)
    session.turn([65] * 400, max_new_tokens=60)
    reply = tight_api.http.post(
        "/v1/completions", json={"prompt": [66], "session_id": session.id, "ignore_eos": True, "max_tokens": None}
    )
    assert reply.json()["usage"]["completion_tokens"] == 16
    reply = session.chat({"role": "user", "content": "x"}, ignore_eos=True)
    usage = reply.json()["usage"]
    assert usage["total_tokens"] == 512
    session.close()


def occupy(api: Api, pool: ThreadPoolExecutor) -> list[Any]:
    """Send requests that use every row for some time."""
    body = {"prompt": "busy", "max_tokens": 150, "ignore_eos": True}
    work = [
        pool.submit(api.complete, body["prompt"], **{k: v for k, v in body.items() if k != "prompt"}) for _ in "abc"
    ]
    within(5, lambda: api.metric("num_running_reqs") == 3)
    return work


@pytest.mark.parametrize("how", ["abort", "disconnect", "timeout", "queue full"])
def test_a_turn_that_never_left_the_queue_leaves_the_session_free(tight_api: Api, how: str) -> None:
    session = Session(tight_api)
    session.turn([65, 66])
    with ThreadPoolExecutor(12) as pool:
        running = occupy(tight_api, pool)
        if how == "queue full":
            running += [pool.submit(tight_api.complete, "q", max_tokens=1) for _ in range(4)]
            within(5, lambda: tight_api.metric("num_queue_reqs") == 4)
            assert code(session.ask([67])) == (429, "queue_full")
        else:
            limit = {"timeout": 0.05} if how == "timeout" else {}
            connection = send(tight_api.url, {"prompt": [67], "session_id": session.id, "rid": "waits", **limit})
            within(5, lambda: session.info()["state"] == "running" or how == "timeout")
            if how == "timeout":
                assert connection.recv(4096).startswith(b"HTTP/1.1 504")
            if how == "abort":
                assert tight_api.http.post("/abort_request", json={"rid": "waits"}).json()["num_aborted"] == 1
                assert connection.recv(4096).startswith(b"HTTP/1.1 499")
            connection.close()
        within(5, lambda: session.info()["state"] != "running")
        assert [work.result() for work in running]
    session.turn([68])
    session.close()
    check_nothing_held(tight_api)


def test_idle_sessions_never_starve_plain_requests(tight_api: Api) -> None:
    retracted = tight_api.metric("num_retracted_requests_total")
    idle = [Session(tight_api) for _ in range(40)]
    for number, session in enumerate(idle):
        new = [65 + number % 20, *b"turn"]
        session.tokens = [*new, *session.ask(new, max_new_tokens=40).json()["output_ids"]]
    assert tight_api.metric("kv_session_held_tokens") > 512, "they fill what the pool has"
    for number in range(10):
        assert tight_api.complete(f"plain {number}" * 40, max_tokens=50, ignore_eos=True)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda text: tight_api.complete(text, max_tokens=20), ["a", "b", "c"]))
    assert tight_api.metric("num_retracted_requests_total") == retracted
    for session in idle[::5]:
        session.turn([70], max_new_tokens=4)  # cold or warm: the session keeps its tokens
    check_scrape(tight_api.totals())
    for session in idle:
        session.close()
    check_nothing_held(tight_api)


def test_turns_under_pressure_give_the_output_of_single_turns(tight_api: Api) -> None:
    opened = [Session(tight_api) for _ in range(3)]
    rng = random.Random(3)

    def chat(session: Session) -> None:
        for _ in range(4):
            new = [rng.randrange(32, 127)] * 20
            reply = session.ask(new, max_new_tokens=60)
            assert reply.status_code == 200, reply.text
            session.tokens += [*new, *reply.json()["output_ids"]]

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(chat, opened))
    for session in opened:
        session.turn([66], max_new_tokens=4)
        *_, expected = session.tokens
        session.close()
        assert whole(tight_api, session.tokens[:-1], max_new_tokens=1) == [expected]
    check_nothing_held(tight_api)
    check_scrape(tight_api.totals())


def test_one_session_grows_through_many_turns(tight_api: Api) -> None:
    session = Session(tight_api)
    for number in range(100):
        session.turn([65 + number % 26], max_new_tokens=3)
    session.close()
    check_nothing_held(tight_api)


def test_without_the_flag_only_plain_sessions_are_opened(api: Api) -> None:
    for path, body in (
        ("/v1/sessions", {}),
        ("/v1/sessions", {"streaming": True}),
        ("/open_session", {"capacity_of_str_len": 1, "streaming": True}),
    ):
        reply = api.http.post(path, json=body)
        assert code(reply) == (400, "streaming_sessions_off")
        assert "--enable-streaming-session" in reply.json()["error"]["message"]
    session = Session(api, streaming=False)
    session.turn([65])
    session.turn([66])
    session.close()


def test_expired_sessions_are_removed_and_a_restart_loses_all(start_daemon: Any) -> None:
    daemon = start_daemon("--enable-streaming-session", "--session-timeout", "0.5", "--restart-on-failure", "1")
    api = Api(daemon.url)
    session, kept = Session(api), Session(api, timeout=600)
    kept.turn([65])
    seen = []

    def forgotten() -> bool:
        seen.append(api.http.get(f"/v1/sessions/{session.id}").status_code)
        return seen[-1] == 404

    within(10, forgotten)
    assert sorted(set(seen), key=seen.index) == [200, 410, 404]
    os.kill(daemon.pids["scheduler"], signal.SIGKILL)
    within(20, lambda: code(kept.ask([66])) == (404, "session_not_found"))
    again = Session(api)
    again.turn([65])
    api.close()
