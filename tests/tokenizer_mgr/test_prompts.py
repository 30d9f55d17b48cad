"""Limits of prompts, and tokenization off the event loop."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator

import pytest
from msgspec import structs

from ebbtide.errors import Rejected
from ebbtide.messages import PoolInfo, RunnerInfo
from ebbtide.paging import fits
from ebbtide.tokenization.tokenizer import ChatPrompt, SimTokenizer
from ebbtide.tokenization.vocabulary import SIM_ASSISTANT, SIM_EOS, SIM_USER
from ebbtide.tokenizer_mgr.prompts import PromptReader
from ebbtide.tokenizer_mgr.session_turns import EncodedTurn

pytestmark = pytest.mark.anyio
INFO = RunnerInfo(
    context_length=100, vocab_size=300, pools=(PoolInfo(5, 16),), num_rows=4, eos_token_ids=(SIM_EOS, 290)
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def reader() -> Iterator[PromptReader]:
    reader = PromptReader(SimTokenizer(), INFO)
    yield reader
    reader.close()


def test_a_given_max_tokens_is_kept_or_refused_exactly(reader: PromptReader) -> None:
    assert reader.max_tokens(40, 60) == 60
    with pytest.raises(Rejected, match="100 tokens") as error:
        reader.max_tokens(40, 61)
    assert error.value.code == "context_length_exceeded"


def test_an_absent_max_tokens_takes_the_default_or_the_rest(reader: PromptReader) -> None:
    assert reader.max_tokens(40, None, default=16) == 16
    small = PromptReader(SimTokenizer(), RunnerInfo(100, 300, (PoolInfo(100, 16),), 4, (SIM_EOS,)))
    assert small.max_tokens(40, None) == 60
    assert small.max_tokens(90, None, default=16) == 10
    with pytest.raises(Rejected):
        small.max_tokens(100, None)
    small.close()


@pytest.mark.parametrize("prompt_len", range(70, 90))
@pytest.mark.parametrize("wanted", [1, 2, 9])
def test_the_pool_bound_is_that_of_admission(reader: PromptReader, prompt_len: int, wanted: int) -> None:
    if fits(prompt_len, wanted, INFO):
        assert reader.max_tokens(prompt_len, wanted) == wanted
    else:
        with pytest.raises(Rejected, match="80 tokens"):
            reader.max_tokens(prompt_len, wanted)


@pytest.mark.parametrize("prompt_len", [1, 40, 79, 80])
def test_an_absent_max_tokens_takes_no_more_than_the_pool_holds(reader: PromptReader, prompt_len: int) -> None:
    """The pool holds 80 tokens, and the K/V of the last output token is never written."""
    assert reader.max_tokens(prompt_len, None) == 81 - prompt_len
    assert reader.max_tokens(prompt_len, None, default=16) == min(16, 81 - prompt_len)
    with pytest.raises(Rejected, match="80 tokens"):
        reader.max_tokens(81, None)


def test_ids_must_have_a_row_in_the_embedding(reader: PromptReader) -> None:
    assert reader.vocab_size == 300
    assert reader.checked_ids([0, 299], "prompt") == [0, 299]
    for bad in (300, -1, 2**64, True, 1.0, "1", None):
        with pytest.raises(Rejected, match="'prompt' has the entry") as error:
            reader.checked_ids([1, bad], "prompt")
        assert error.value.param == "prompt"


async def test_text_with_a_token_that_the_embedding_lacks_is_refused() -> None:
    """The embedding has 200 rows: bytes from 200 on and the control tokens lack one."""
    short = PromptReader(SimTokenizer(), structs.replace(INFO, vocab_size=200, eos_token_ids=()))
    chat = ChatPrompt([{"role": "user", "content": "hi"}])
    assert await short.text("plain") == list(b"plain")
    for call, param, sentence in (
        (short.text("snow \u2603"), "prompt", "id 226, but this model's embedding has only 200 rows"),
        (short.continuation("snow \u2603"), "prompt", "id 226"),
        (short.tokens_of("snow \u2603", add_special_tokens=False), "prompt", "id 226"),
        (short.chat(chat), "messages", "the token '<|assistant|>' with id 259"),
        (short.chat_turn(chat, chat), "messages", "the token '<|assistant|>' with id 259"),
    ):
        with pytest.raises(Rejected, match=re.escape(sentence)) as error:
            await call
        assert (error.value.status, error.value.param) == (400, param)
    assert short.extra_stop_ids == ()
    short.close()


@pytest.mark.parametrize(
    ("num_rows", "sentence"),
    [
        (260, ""),
        (200, "The tokenizer has 260 token ids and the model's embedding has 200 rows: prompts with an id of 200"),
        (
            300,
            "The tokenizer has 260 token ids and the model's embedding has 300 rows: ids of 260 or higher are accepted",
        ),
    ],
)
def test_a_difference_between_tokenizer_and_embedding_is_one_sentence(num_rows: int, sentence: str) -> None:
    reader = PromptReader(SimTokenizer(), structs.replace(INFO, vocab_size=num_rows))
    assert reader.size_difference.startswith(sentence)
    assert bool(reader.size_difference) is bool(sentence)
    reader.close()


def test_requests_list_only_the_end_tokens_that_the_model_lacks(reader: PromptReader) -> None:
    assert reader.eos_ids == (SIM_EOS, 290)
    assert reader.extra_stop_ids == ()


async def test_a_text_far_beyond_the_context_is_refused_without_tokenising(reader: PromptReader) -> None:
    with pytest.raises(Rejected) as error:
        await reader.text("x" * 2000)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(Rejected):
        await reader.chat(ChatPrompt([{"role": "user", "content": "\xe9" * 1000}]))


async def test_an_empty_result_is_refused(reader: PromptReader) -> None:
    with pytest.raises(Rejected) as error:
        await reader.text("")
    assert error.value.param == "prompt"


async def test_the_loop_runs_while_a_text_is_tokenised() -> None:
    class Blocking(SimTokenizer):
        release = threading.Event()

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            assert self.release.wait(10)
            return super().encode(text, add_special_tokens=add_special_tokens)

    tokenizer = Blocking()
    reader = PromptReader(tokenizer, INFO)
    waiting = asyncio.ensure_future(reader.text("ab"))
    await asyncio.sleep(0)
    assert not waiting.done()
    tokenizer.release.set()
    assert await waiting == [97, 98]
    reader.close()


async def chat_turn(reader: PromptReader, messages: list[dict[str, str]]) -> EncodedTurn:
    chat = ChatPrompt(messages)
    return await reader.chat_turn(chat, chat)


async def test_a_turn_is_prepared_as_a_first_and_as_a_later_turn(reader: PromptReader) -> None:
    turn = await chat_turn(reader, [{"role": "user", "content": "x"}])
    assert turn.prompt == [SIM_USER, ord("x"), SIM_EOS, SIM_ASSISTANT]
    assert turn.continuation == [SIM_EOS, *turn.prompt]
    assert (turn.head, turn.refusal, turn.shortest) == (1, "", 4)


async def test_a_turn_that_can_only_be_the_first_has_a_refusal(reader: PromptReader) -> None:
    messages = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    turn = await chat_turn(reader, messages)
    assert turn.prompt
    assert not turn.continuation
    assert "only the new messages" in turn.refusal


async def test_messages_that_are_too_long_for_any_context_are_not_rendered(reader: PromptReader) -> None:
    with pytest.raises(Rejected) as error:
        await chat_turn(reader, [{"role": "user", "content": "x" * 10_000}])
    assert error.value.code == "context_length_exceeded"


class WithMarks(SimTokenizer):
    """Adds 1 before and 2 after every text."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = super().encode(text, add_special_tokens=add_special_tokens)
        return [1, *ids, 2] if add_special_tokens else ids


async def test_a_continuation_has_no_bos_token(reader: PromptReader) -> None:
    marking = PromptReader(WithMarks(), INFO)
    assert await marking.continuation("ab") == [ord("a"), ord("b")]
    assert await marking.continuation([1, 5, 1]) == [5, 1]
    assert await marking.continuation([5]) == [5]
    assert await reader.continuation([1, 5]) == [1, 5], "this tokenizer writes none, so 1 is the client's own"
    with pytest.raises(Rejected, match="empty"):
        await marking.continuation([1])
    marking.close()


async def test_a_text_that_begins_with_bos_gets_no_second_one(reader: PromptReader) -> None:
    marking = PromptReader(WithMarks(), INFO)
    assert await marking.text("ab") == [1, ord("a"), ord("b"), 2]
    assert await marking.text("\x01ab") == [1, ord("a"), ord("b"), 2]
    assert await marking.text("\x01\x01ab") == [1, 1, ord("a"), ord("b"), 2], "the client's own two"
    assert await marking.text("\x01ab", add_special_tokens=False) == [1, ord("a"), ord("b")]
    assert await marking.tokens_of("", add_special_tokens=True) == [1, 2]
    assert await reader.text("\x01\x01") == [1, 1], "this tokenizer adds none"
    marking.close()


def test_control_tokens_are_found_by_their_text(reader: PromptReader) -> None:
    assert reader.special_ids(["<|assistant|>", "<|user|>", "a", "<|nobody|>"]) == (SIM_USER, SIM_ASSISTANT)
    assert reader.special_ids(["<|end|>"]) == (), "what ends an answer is no mark within it"


def test_the_end_of_a_prompt_as_text(reader: PromptReader) -> None:
    assert reader.ending([*b"x" * 99, SIM_ASSISTANT, *b"<think>\n"]).endswith("x<|assistant|><think>\n")
    assert reader.ending([]) == ""


async def test_tools_count_among_what_is_too_long(reader: PromptReader) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 2000}}]
    with pytest.raises(Rejected, match="maximum context length"):
        await reader.chat(ChatPrompt([{"role": "user", "content": "a"}], tools=tools))
