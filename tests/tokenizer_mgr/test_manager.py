"""Each request has one outcome, for every order in which the messages can arrive."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ebbtide.errors import Rejected
from ebbtide.messages import (
    AbortReq,
    FinishReq,
    GenerateReq,
    PressureUsage,
    SamplingParams,
    TextBatch,
    TextItem,
    TextParams,
    ToEngine,
)
from ebbtide.tokenizer_mgr.manager import TokenizerManager
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest, Sender
from ebbtide.tokenizer_mgr.request_log import RequestLog
from ebbtide.tokenizer_mgr.response_stream import Delta, ResponseStream

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Outbox:
    """Records the sent messages. Accepts ``room`` of them."""

    def __init__(self) -> None:
        self.sent: list[ToEngine] = []
        self.room = 10_000

    def send(self, message: ToEngine) -> bool:
        if len(self.sent) >= self.room:
            return False
        self.sent.append(message)
        return True

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]


class Timings:
    """Records the latencies."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.gaps: list[tuple[float, int]] = []
        self.ends: list[float] = []

    def observe_first_token(self, seconds: float) -> None:
        self.first.append(seconds)

    def observe_token_gap(self, seconds: float, count: int) -> None:
        self.gaps.append((seconds, count))

    def observe_completion(self, seconds: float) -> None:
        self.ends.append(seconds)


class Desk:
    """A manager with recorded messages and a clock that the test controls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.outbox = Outbox()
        self.timings = Timings()
        self.manager = TokenizerManager(self.outbox, self.timings, lambda: self.now)

    def submit(self, prompts: int = 1, n: int = 1) -> ResponseStream:
        sampling = [SamplingParams(max_tokens=9)] * prompts
        order = PreparedRequest(prompts=[[i] for i in range(prompts)], sampling=sampling, text=TextParams(), n=n)
        return self.manager.submit(order, Sender(), received_s=self.now)

    def text(self, rid: str, text: str, num: int, *, count: int = 1, **more: Any) -> None:
        item = TextItem(rid, text, tokens=[7] * count, num_output_tokens=num, **more)
        self.manager.handle(TextBatch([item]))

    def abort(self, rid: str, num: int, **more: Any) -> None:
        self.manager.handle(AbortReq(rid, "kv_cache_exhausted", num_output_tokens=num, **more))


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_new_items_are_joined_per_choice(desk: Desk) -> None:
    with desk.submit(n=2) as answer:
        first, second = answer.rids
        desk.text(first, "a", 1, cached_tokens=4)
        desk.text(second, "x", 1)
        desk.text(first, "b", 2)
        one, two = await answer.next_deltas()
        assert (one.index, one.text, one.tokens, one.num_output_tokens, one.cached_tokens) == (0, "ab", [7, 7], 2, 4)
        assert (two.index, two.text) == (1, "x")
        desk.text(first, "c", 3, finish="length")
        assert [delta.finish for delta in await answer.next_deltas()] == ["length"]
        assert not answer.done
        desk.text(second, "y", 2, finish="stop")
        await answer.next_deltas()
        assert answer.done
    assert desk.outbox.of(AbortReq) == []
    assert desk.manager.num_open == 0


async def test_the_whole_answer_waits_for_every_choice(desk: Desk) -> None:
    with desk.submit(prompts=2, n=2) as answer:
        waiting = asyncio.ensure_future(answer.all_deltas())
        for rid in answer.rids:
            await asyncio.sleep(0)
            assert not waiting.done()
            desk.text(rid, rid[-1], 1, finish="stop")
        assert [delta.text for delta in await waiting] == ["0", "1", "2", "3"]
    assert [request.rids for request in desk.outbox.of(GenerateReq)] == [tuple(answer.rids[:2]), tuple(answer.rids[2:])]


async def test_a_wait_without_new_items_returns_nothing(desk: Desk) -> None:
    with desk.submit() as answer:
        assert await answer.next_deltas(0.001) == []


async def test_an_abort_waits_for_the_closing_item(desk: Desk) -> None:
    with desk.submit() as answer:
        [rid] = answer.rids
        desk.text(rid, "a", 1)
        desk.abort(rid, 2)
        assert not answer.has_outcome
        desk.text(rid, "b", 2, finish="abort")
        assert [delta.text for delta in await answer.next_deltas()] == ["ab"], "text that came before is not lost"
        with pytest.raises(Rejected) as error:
            await answer.next_deltas()
        assert (error.value.status, error.value.kind) == (500, "server_error")
        assert error.value.should_retry is False
    assert desk.outbox.of(AbortReq) == [AbortReq(rid, "kv_cache_exhausted")], "the detokenizer may have aborted it"


async def test_a_request_that_fails_in_the_detokenizer_is_aborted_in_the_scheduler_at_once(desk: Desk) -> None:
    with desk.submit() as answer, desk.submit() as bystander:
        [rid] = answer.rids
        desk.text(rid, "a", 1)
        desk.manager.handle(AbortReq(rid, "detokenizer", 500, "internal_error", "no text"))
        assert answer.has_outcome, "no closing item will arrive, because the detokenizer has removed the request"
        assert desk.outbox.of(AbortReq) == [AbortReq(rid, "detokenizer")]
        assert [delta.text for delta in await answer.next_deltas()] == ["a"]
        with pytest.raises(Rejected, match="no text"):
            await answer.next_deltas()
        desk.text(bystander.rids[0], "b", 1, finish="stop")
    assert desk.manager.num_open == 0


async def test_requests_time_out_even_if_the_engine_is_silent(desk: Desk) -> None:
    sampling = SamplingParams(max_tokens=4)
    order = PreparedRequest(
        prompts=[[1]],
        sampling=[sampling],
        text=TextParams(),
    )
    late = desk.manager.submit(order, Sender(timeout_s=2.0), received_s=0.0)
    patient = desk.manager.submit(
        PreparedRequest(prompts=[[1]], sampling=[sampling], text=TextParams()), Sender(), received_s=0.0
    )
    desk.now = 1.9
    desk.manager.expire_late()
    assert not late.has_outcome
    desk.now = 2.1
    desk.manager.expire_late()
    with late, pytest.raises(Rejected) as caught:
        await late.all_deltas()
    assert (caught.value.status, caught.value.code, caught.value.should_retry) == (504, "timeout", False)
    assert [abort.rid for abort in desk.outbox.of(AbortReq)] == late.rids
    assert not patient.has_outcome


async def test_a_full_queue_has_retry_after_and_leaves_the_retry_to_the_client(desk: Desk) -> None:
    with desk.submit() as answer:
        desk.abort(answer.rids[0], 0, status=429, code="queue_full", message="full", retry_after_s=7.5)
        with pytest.raises(Rejected) as error:
            await answer.all_deltas()
    refusal = error.value
    assert (refusal.status, refusal.kind, refusal.code) == (429, "rate_limit_error", "queue_full")
    assert (refusal.retry_after_s, refusal.should_retry) == (7.5, None)


async def test_an_exhausted_pool_has_no_retry_after(desk: Desk) -> None:
    with desk.submit() as answer:
        desk.abort(answer.rids[0], 0, status=500, code="kv_cache_exhausted", message="no room")
        with pytest.raises(Rejected) as error:
            await answer.all_deltas()
    refusal = error.value
    assert (refusal.status, refusal.kind, refusal.code) == (500, "server_error", "kv_cache_exhausted")
    assert (refusal.retry_after_s, refusal.should_retry) == (None, False)


@pytest.mark.parametrize(
    ("status", "code", "kind", "should_retry"),
    [
        (404, "session_not_found", "not_found_error", None),
        (409, "session_busy", "conflict_error", False),
        (410, "session_closed", "not_found_error", None),
        (429, "too_many_sessions", "rate_limit_error", None),
        (400, "context_length_exceeded", "invalid_request_error", None),
    ],
)
async def test_a_refused_turn_has_the_kind_of_its_status(
    desk: Desk, status: int, code: str, kind: str, should_retry: bool | None
) -> None:
    with desk.submit() as answer:
        desk.abort(answer.rids[0], 0, status=status, code=code, message="no")
        with pytest.raises(Rejected) as error:
            await answer.all_deltas()
    refusal = error.value
    assert (refusal.status, refusal.code, refusal.kind, refusal.should_retry) == (status, code, kind, should_retry)


async def test_the_closing_item_waits_for_its_abort(desk: Desk) -> None:
    with desk.submit() as answer:
        [rid] = answer.rids
        desk.text(rid, "ab", 2, finish="abort")
        assert not answer.has_outcome
        desk.abort(rid, 2)
        assert answer.has_outcome


async def test_a_finish_that_comes_before_the_closing_item_wins(desk: Desk) -> None:
    with desk.submit() as answer:
        [rid] = answer.rids
        desk.text(rid, "a", 1)
        desk.abort(rid, 3)
        desk.text(rid, "b", 2, finish="stop", matched="END")
        desk.text(rid, "c", 3, finish="abort")
        [delta] = await answer.all_deltas()
        assert (delta.text, delta.finish, delta.matched) == ("ab", "stop", "END")
    assert desk.outbox.of(FinishReq) == [FinishReq(rid, 2)]


async def test_a_request_that_never_had_a_token_is_answered_at_once(desk: Desk) -> None:
    with desk.submit() as answer:
        desk.abort(answer.rids[0], 0, status=503, code="queue_full", message="full")
        with pytest.raises(Rejected) as error:
            await answer.all_deltas()
    assert (error.value.status, error.value.kind, error.value.code) == (503, "overloaded_error", "queue_full")


async def test_all_requests_are_answered_at_once_if_the_engine_has_ended(desk: Desk) -> None:
    with desk.submit() as answer, desk.submit(n=2) as other:
        desk.text(answer.rids[0], "a", 1)
        desk.abort(answer.rids[0], 5)
        desk.manager.fail_all(Rejected("gone", status=500, kind="server_error"))
        await answer.next_deltas()
        for each in (answer, other):
            with pytest.raises(Rejected, match="gone"):
                await each.next_deltas()
        desk.text(answer.rids[0], "late", 2)
    assert desk.manager.num_open == 0


async def test_a_complete_answer_stays_complete(desk: Desk) -> None:
    with desk.submit() as answer:
        desk.text(answer.rids[0], "a", 1, finish="stop")
        desk.manager.fail_all(Rejected("gone", status=500))
        desk.abort(answer.rids[0], 1)
        assert [delta.text for delta in await answer.all_deltas()] == ["a"]


async def test_a_failed_choice_ends_only_its_siblings(desk: Desk) -> None:
    with desk.submit(prompts=2, n=2) as answer, desk.submit() as bystander:
        desk.text(answer.rids[0], "a", 1, finish="stop")
        desk.abort(answer.rids[2], 0)
        with pytest.raises(Rejected):
            await answer.all_deltas()
        assert [abort.rid for abort in desk.outbox.of(AbortReq)] == [answer.rids[i] for i in (2, 1, 3)]
        desk.text(bystander.rids[0], "b", 1, finish="stop")
        await bystander.all_deltas()


async def test_a_disconnect_aborts_the_running_choices(desk: Desk) -> None:
    with desk.submit(n=2) as answer:
        desk.text(answer.rids[0], "a", 1, finish="stop")
    assert desk.outbox.of(AbortReq) == [AbortReq(answer.rids[1], "client")]
    desk.text(answer.rids[1], "late", 1)
    desk.abort(answer.rids[1], 1)
    assert desk.manager.num_open == 0


async def test_messages_about_unknown_requests_change_nothing(desk: Desk) -> None:
    desk.text("nobody", "a", 1, finish="stop", matched="x")
    desk.abort("nobody", 0)
    desk.abort("nobody", 3)
    assert desk.outbox.sent == []


async def test_the_stop_string_reaches_the_scheduler_before_the_next_request(desk: Desk) -> None:
    with desk.submit() as answer:
        desk.text(answer.rids[0], "a", 3, finish="stop", matched="S", num_shown_tokens=2)
        await answer.all_deltas()
    with desk.submit():
        kinds = [type(message) for message in desk.outbox.sent]
    assert kinds[:3] == [GenerateReq, FinishReq, GenerateReq]
    assert desk.outbox.of(FinishReq) == [FinishReq(answer.rids[0], 3, 2)]


async def test_a_stop_token_needs_no_message(desk: Desk) -> None:
    with desk.submit() as answer:
        desk.text(answer.rids[0], "a", 3, finish="stop", matched=2)
    assert desk.outbox.of(FinishReq) == []


async def test_no_part_of_a_batch_runs_if_the_queue_refuses_one(desk: Desk) -> None:
    desk.outbox.room = 2
    with pytest.raises(Rejected) as error:
        desk.submit(prompts=4)
    assert error.value.status == 503
    assert desk.manager.num_open == 0
    desk.outbox.room = 100
    assert len(desk.outbox.of(GenerateReq)) == 2


async def test_times_are_taken_per_request_and_gap(desk: Desk) -> None:
    with desk.submit(n=2) as answer:
        first, second = answer.rids
        desk.now = 2.0
        desk.text(first, "", 1)
        desk.now = 3.0
        desk.text(second, "x", 1)
        desk.text(first, "abc", 5, count=4)
        desk.now = 4.0
        desk.text(second, "", 1, count=0, finish="length")
        desk.text(first, "", 5, count=0, finish="stop")
    assert desk.timings.first == [2.0]
    assert desk.timings.gaps == [(0.25, 4)]
    assert desk.timings.ends == [4.0]


@pytest.mark.parametrize("seed", range(20))
async def test_any_interleaving_gives_each_request_one_outcome(desk: Desk, seed: int) -> None:
    """Messages about one request are ordered on each of the two paths; nothing else is ordered."""
    rng = random.Random(seed)
    answers = [desk.submit(n=rng.randint(1, 3)) for _ in range(30)]
    paths: list[list[Callable[[], None]]] = []
    for answer in answers:
        for rid in answer.rids:
            paths += _paths(desk, rng, rid)
    outcomes = [asyncio.ensure_future(_outcome(answer)) for answer in answers]
    while paths:
        path = rng.choice(paths)
        path.pop(0)()
        if not path:
            paths.remove(path)
        if rng.random() < 0.2:
            await asyncio.sleep(0)
    results = await asyncio.wait_for(asyncio.gather(*outcomes), 5)
    assert {kind for kind, _ in results} <= {"ok", "error", "left"}
    for answer, (kind, texts) in zip(answers, results, strict=True):
        assert kind != "ok" or set(texts) == set(range(len(answer.rids)))
    assert desk.manager.num_open == 0


def _paths(desk: Desk, rng: random.Random, rid: str) -> list[list[Callable[[], None]]]:
    length = rng.randint(1, 6)
    texts: list[Callable[[], None]] = [partial(desk.text, rid, str(i), i) for i in range(1, length)]
    end = rng.choice(["stop", "length", "stop string", "abort", "refused"])
    if end == "refused":
        return [[lambda: desk.abort(rid, 0)]]
    if end == "abort":
        closing = lambda: desk.text(rid, "!", length, finish="abort")  # noqa: E731
        return [[*texts, closing], [lambda: desk.abort(rid, length)]]
    matched = "S" if end == "stop string" else None
    finish = "length" if end == "length" else "stop"
    return [[*texts, lambda: desk.text(rid, "!", length, finish=finish, matched=matched)]]


async def _outcome(answer: ResponseStream) -> tuple[str, dict[int, str]]:
    texts: dict[int, str] = {}
    finishes: list[Delta] = []
    with answer:
        try:
            while not answer.done:
                for delta in await answer.next_deltas():
                    texts[delta.index] = texts.get(delta.index, "") + delta.text
                    finishes += [delta] if delta.finish else []
        except Rejected:
            return "error", texts
    assert len(finishes) == len(answer.rids)
    assert all(text == "".join(map(str, range(1, len(text)))) + "!" for text in texts.values())
    return "ok", texts


# ---------------------------------------------------------------------- an exception in submit


class SeededError(Exception):
    """The exception that a step of submit raises."""


class RaisingSender(Sender):
    """Raises at one of its conversions."""

    step = ""

    def __getattribute__(self, name: str) -> Any:
        if name == type(self).step:
            raise SeededError(name)
        return super().__getattribute__(name)


STEPS = (
    "ids",
    "timeout_s",
    "queue_timeout_s",
    "priority",
    "namespace",
    "session",
    "clock",
    "add",
    "send",
    "second send",
)


@pytest.mark.parametrize("step", STEPS)
def test_an_exception_in_any_step_of_submit_leaves_no_open_request(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    names = ("mine", "other name")
    sender = RaisingSender(ids=names, owner="key")
    sent = desk.outbox.send

    def raising_send(message: ToEngine) -> bool:
        if isinstance(message, GenerateReq) and len(desk.outbox.of(GenerateReq)) == int(step == "second send"):
            raise OverflowError("can't serialize ints outside of 64 bits")
        return sent(message)

    def raise_now(*_: object) -> Any:
        raise SeededError

    if step.endswith("send"):
        monkeypatch.setattr(desk.outbox, "send", raising_send)
    elif step == "clock":
        desk.manager.clock = raise_now
    elif step == "add":
        monkeypatch.setattr("ebbtide.tokenizer_mgr.client_ids.Counter.__setitem__", raise_now, raising=False)
    else:
        monkeypatch.setattr(RaisingSender, "step", step)
    order = PreparedRequest([[1], [2]], [SamplingParams(max_tokens=9)] * 2, TextParams(), n=3)
    with monkeypatch.context(), pytest.raises((SeededError, OverflowError)):
        desk.manager.submit(order, sender, received_s=0.0)
    monkeypatch.undo()
    assert (desk.manager.num_open, desk.manager.num_choices, desk.manager.num_open_of("key")) == (0, 0, 0)
    assert desk.manager.abort("mine", Rejected("gone"), owner=None) == 0
    assert desk.manager.abort(None, Rejected("gone"), owner=None) == 0
    begun = [rid for request in desk.outbox.of(GenerateReq) for rid in request.rids]
    assert set(begun) <= {abort.rid for abort in desk.outbox.of(AbortReq)}
    assert bool(begun) is (step == "second send")


@pytest.fixture
def logged(desk: Desk, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="ebbtide.tokenizer_mgr.request_log")
    desk.manager.request_log = RequestLog(lambda: desk.now)
    desk.manager.keeps_facts = True
    return caplog


async def test_a_request_is_logged_once_at_its_end(desk: Desk, logged: pytest.LogCaptureFixture) -> None:
    with desk.submit(n=2) as answer:
        answer.client_id, answer.facts.num_choices, answer.facts.prompt_tokens = "mine", 2, {0: 7}
        first, second = answer.rids
        desk.now = 0.5
        desk.text(first, "secret", 1, cached_tokens=4)
        desk.text(second, "secret", 3, cached_tokens=7, finish="stop", pressure=PressureUsage(2, 5, 1))
        desk.now = 2.0
        desk.text(first, "secret", 2, finish="length")
        await answer.all_deltas()
    answer.close()
    assert logged.messages == [
        f"request mine ({first}): prompt 7, cached 4, output 5 tokens; first token 0.500 s, total 2.000 s; "
        "2 retractions; finish length,stop, status 200"
    ]


async def test_the_log_distinguishes_failed_requests_from_disconnects(
    desk: Desk, logged: pytest.LogCaptureFixture
) -> None:
    with desk.submit() as failed:
        desk.manager.handle(AbortReq(failed.rids[0], "timeout", status=504))
        with pytest.raises(Rejected):
            await failed.all_deltas()
    with desk.submit():
        pass
    assert [message.split("; ")[-1] for message in logged.messages] == [
        "finish timeout, status 504",
        "finish -, status 499",
    ]
