import logging
import select
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest
import zmq

from ebbtide.config import Addresses, DetokenizerSection, LogConfig
from ebbtide.detokenizer.process import HEARTBEAT_S, Detokenizer, HeartbeatTimer, serve_once
from ebbtide.errors import EbbtideError
from ebbtide.messages import (
    AbortReq,
    Heartbeat,
    PressureUsage,
    PromptLogprobs,
    StreamStart,
    TextAlternative,
    TextBatch,
    TextItem,
    TextLogprob,
    TextParams,
    ToFront,
    TokenBatch,
    TokenItem,
    TokenLogprob,
)
from ebbtide.runtime.channel import Receiver, Sender
from ebbtide.runtime.child import Child, stop_children
from ebbtide.tokenization.vocabulary import SIM_EOS, sim_vocabulary


def start(*stop: str, cached_tokens: int = 0, prompt_tokens: int = 0) -> StreamStart:
    return StreamStart(TextParams(stop=stop), [], cached_tokens, prompt_tokens)


def item(rid: str, text: str = "", **rest: object) -> TokenItem:
    return TokenItem(rid, list(text.encode()), **rest)  # type: ignore[arg-type]


@pytest.fixture
def detokenizer() -> Detokenizer:
    return Detokenizer(sim_vocabulary())


def convert(detokenizer: Detokenizer, *items: TokenItem) -> list[TextItem]:
    return detokenizer.convert(TokenBatch(list(items))).items


def test_requests_of_one_batch_keep_their_order_and_their_state(detokenizer: Detokenizer) -> None:
    first = convert(detokenizer, item("a", "é"[:0], start=start()), TokenItem("b", [0xC3], start=start()))
    assert [(i.rid, i.text, i.tokens) for i in first] == [("a", "", []), ("b", "", [0xC3])]
    second = convert(detokenizer, TokenItem("b", [0xA9]), item("a", "x"))
    assert [(i.rid, i.text, i.num_output_tokens) for i in second] == [("b", "é", 2), ("a", "x", 1)]


def test_the_closing_item_flushes_and_removes_the_stream(detokenizer: Detokenizer) -> None:
    convert(detokenizer, item("a", "ab", start=start("bc")))
    (last,) = convert(detokenizer, item("a", "", finish="abort"))
    assert (last.text, last.finish, last.num_output_tokens) == ("b", "abort", 2)
    assert detokenizer.num_open == 0


def test_a_stop_string_ends_the_output_at_its_token(detokenizer: Detokenizer) -> None:
    logprobs = [TokenLogprob(-1.0), TokenLogprob(-2.0), TokenLogprob(-3.0)]
    (text,) = convert(
        detokenizer, item("a", "abc", start=start("b", cached_tokens=5, prompt_tokens=9), logprobs=logprobs)
    )
    assert (text.text, text.tokens, text.num_output_tokens, text.finish, text.matched) == (
        "a",
        [97, 98],
        2,
        "stop",
        "b",
    )
    assert text.logprobs is not None
    assert [entry.chosen.logprob for entry in text.logprobs] == [-1.0, -2.0]
    assert (text.cached_tokens, text.prompt_tokens) == (5, 9)


def test_items_after_a_stop_string_are_dropped_until_the_closing_item(detokenizer: Detokenizer) -> None:
    convert(detokenizer, item("a", "ab", start=start("b")))
    assert convert(detokenizer, item("a", "c"), item("a", "d")) == []
    assert detokenizer.num_open == 1
    assert convert(detokenizer, item("a", "", finish="stop")) == []
    assert detokenizer.num_open == 0


def test_a_stop_string_in_the_closing_item_leaves_no_trace(detokenizer: Detokenizer) -> None:
    (text,) = convert(detokenizer, item("a", "abc", start=start("b"), finish="length"))
    assert (text.finish, text.matched) == ("stop", "b")
    assert detokenizer.num_open == 0


def test_a_reused_id_starts_with_empty_state(detokenizer: Detokenizer) -> None:
    convert(detokenizer, item("a", "held", start=start("dog")))
    assert convert(detokenizer, item("a", "og", start=start()))[0].text == "og"
    convert(detokenizer, item("a", "x", start=start("x")))
    assert convert(detokenizer, item("a", "y", start=start()), item("a", "z"))[1].text == "z"


def test_the_text_of_a_stop_token_is_not_output(detokenizer: Detokenizer) -> None:
    (text,) = convert(detokenizer, item("a", "hi.", start=start(), finish="stop", stop_token=ord(".")))
    assert (text.text, text.tokens, text.num_output_tokens, text.matched) == ("hi", list(b"hi."), 3, ord("."))
    (text,) = convert(detokenizer, TokenItem("b", [104, SIM_EOS], start(), finish="stop", stop_token=SIM_EOS))
    assert (text.text, text.num_output_tokens, text.matched) == ("h", 2, SIM_EOS)


def test_a_named_stop_token_is_shown_if_asked_for(detokenizer: Detokenizer) -> None:
    shown = StreamStart(TextParams(stop=("hi.!",), include_stop=True, shown_stop_ids=(ord("."), SIM_EOS)), [], 0)
    (text,) = convert(detokenizer, item("a", "hi.", start=shown, finish="stop", stop_token=ord(".")))
    assert (text.text, text.num_output_tokens, text.matched) == ("hi.", 3, ord("."))
    (text,) = convert(detokenizer, TokenItem("b", [104, SIM_EOS], shown, finish="stop", stop_token=SIM_EOS))
    assert (text.text, text.num_output_tokens, text.matched) == ("h", 2, SIM_EOS)  # a control token
    (text,) = convert(detokenizer, item("c", "hi!", start=shown, finish="stop", stop_token=ord("!")))
    assert text.text == "hi"


def test_pressure_passes_through(detokenizer: Detokenizer) -> None:
    usage = PressureUsage(2, 100, 30)
    assert convert(detokenizer, item("a", "x", start=start(), finish="stop", pressure=usage))[0].pressure == usage


def test_items_of_unknown_requests_are_dropped(detokenizer: Detokenizer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert convert(detokenizer, item("ghost", "boo"), item("ghost", "", finish="abort")) == []
    assert "dropping 3 tokens of the unknown request ghost" in caplog.text


def test_an_error_ends_its_own_request_only(detokenizer: Detokenizer, caplog: pytest.LogCaptureFixture) -> None:
    bad = item("bad", "x", start=start(), logprobs=[TokenLogprob(0.0, [1, 2], [0.0])])
    assert [i.rid for i in convert(detokenizer, bad, item("good", "y", start=start()))] == ["good"]
    (abort,) = detokenizer.pop_failures()
    assert (abort.rid, abort.status, abort.num_output_tokens) == ("bad", 500, 0)
    assert detokenizer.pop_failures() == []
    assert convert(detokenizer, item("bad", "more"), item("bad", "", finish="length")) == []
    assert detokenizer.num_open == 1
    assert "aborting request bad: its text could not be decoded" in caplog.text


def test_a_long_request_is_not_forgotten_among_thousands_of_short_ones(detokenizer: Detokenizer) -> None:
    convert(detokenizer, item("long", "", start=start()))
    for number in range(5000):
        convert(detokenizer, item(f"s{number}", "x", start=start(), finish="length"), item("long", "y"))
    assert convert(detokenizer, item("long", "", finish="length"))[0].num_output_tokens == 5000
    assert detokenizer.num_open == 0


class FakeInbox:
    def __init__(self, *batches: list[TokenBatch]) -> None:
        self.handled = 0
        self._batches = list(batches)

    def drain(self, wait_s: float = 0.0) -> list[TokenBatch]:
        assert wait_s > 0
        batches = self._batches.pop(0) if self._batches else []
        self.handled += len(batches)
        return batches


class FakeOutbox:
    def __init__(self, *, full: bool = False) -> None:
        self.sent: list[ToFront] = []
        self._full = full

    def send(self, message: ToFront) -> bool:
        self.sent.append(message)
        return not self._full


def test_a_heartbeat_comes_first_and_then_in_time_also_within_a_backlog(detokenizer: Detokenizer) -> None:
    batch = TokenBatch([item("a", "x", start=start())])
    inbox, outbox = FakeInbox([batch] * 10), FakeOutbox()
    ticks = count()
    heartbeat = HeartbeatTimer(detokenizer, inbox, outbox, lambda: next(ticks) * HEARTBEAT_S / 4)
    serve_once(detokenizer, inbox, outbox, heartbeat)
    kinds = [type(message) for message in outbox.sent]
    assert kinds.count(TextBatch) == 10
    assert kinds[0] is Heartbeat
    beats = [index for index, kind in enumerate(kinds) if kind is Heartbeat]
    assert max(b - a for a, b in pairwise(beats)) <= 5
    assert Heartbeat("detokenizer", 10, "running", num_requests=1) in outbox.sent


def test_failures_are_sent_and_empty_batches_are_not(detokenizer: Detokenizer) -> None:
    bad = item("bad", "x", start=start(), logprobs=[TokenLogprob(0.0, [1], [])])
    inbox, outbox = FakeInbox([TokenBatch([bad]), TokenBatch([item("ghost")])]), FakeOutbox()
    serve_once(detokenizer, inbox, outbox, HeartbeatTimer(detokenizer, inbox, outbox, lambda: 0.0))
    assert [type(message) for message in outbox.sent] == [Heartbeat, AbortReq]


def test_a_full_queue_to_the_front_ends_the_process(detokenizer: Detokenizer) -> None:
    inbox, outbox = FakeInbox(), FakeOutbox(full=True)
    with pytest.raises(EbbtideError, match="queue to the front process is full"):
        serve_once(detokenizer, inbox, outbox, HeartbeatTimer(detokenizer, inbox, outbox, lambda: 0.0))


@pytest.fixture
def addresses(tmp_path: Path) -> Addresses:
    return Addresses(*(f"ipc://{tmp_path}/{name}" for name in ("front", "scheduler", "detokenizer")))


@pytest.fixture
def child(addresses: Addresses) -> Iterator[Child]:
    child = Child("ebbtide.detokenizer.process", "detokenizer")
    child.send(DetokenizerSection(sim_vocabulary(), LogConfig(), addresses))
    yield child
    stop_children([child], 10.0)
    assert child.exit_code == 0


def test_the_process_decodes_batches_and_sends_heartbeats_when_idle(child: Child, addresses: Addresses) -> None:
    with zmq.Context() as context:
        front: Receiver[ToFront] = Receiver(context, addresses.front, ToFront)
        scheduler: Sender[TokenBatch] = Sender(context, addresses.detokenizer)
        select.select([child.status_fd], [], [], 20)
        assert [status.kind for status in child.read_status() or []] == ["ready"]
        scheduler.send(TokenBatch([item("a", "hi", start=start(), finish="stop")]))
        seen: list[ToFront] = []
        while sum(isinstance(message, Heartbeat) for message in seen) < 3:
            seen += front.drain(2.0)
        assert TextBatch([TextItem("a", "hi", [104, 105], 2, "stop", cached_tokens=0, prompt_tokens=0)]) in seen
        assert seen[-1] == Heartbeat("detokenizer", 1)
        scheduler.close()
        front.close()


def test_scores_of_a_prompt_become_text_and_cover_no_output_token() -> None:
    detokenizer = Detokenizer(sim_vocabulary())
    scores = PromptLogprobs([0xC3, 98], [TokenLogprob(-1.0, [65], [-0.5], 2), TokenLogprob(-2.0, rank=9)])
    start = StreamStart(TextParams(), [0xC3, 98], 0, 3)
    [item] = detokenizer.convert(TokenBatch([TokenItem("a", [], start, prompt=scores)])).items
    assert (item.text, item.tokens, item.num_output_tokens, item.finish) == ("", [], 0, None)
    assert item.prompt == [
        TextLogprob(TextAlternative("\ufffd", b"\xc3", -1.0, 0xC3), [TextAlternative("A", b"A", -0.5, 65)], 2),
        TextLogprob(TextAlternative("b", b"b", -2.0, 98), [], 9),
    ]
    [end] = detokenizer.convert(TokenBatch([TokenItem("a", [], finish="length")])).items
    assert (end.text, end.finish, end.num_output_tokens) == ("", "length", 0)
    assert detokenizer.num_open == 0
