"""Tokenizes messages and strings, and checks that they fit into the context length and the KV pool.

Tokenization runs in threads, so that it does not block the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

from ebbtide.errors import Rejected
from ebbtide.messages import RunnerInfo
from ebbtide.paging import fits
from ebbtide.tokenization.tokenizer import ChatPrompt, TextTokenizer
from ebbtide.tokenization.vocabulary import Vocabulary

from .session_turns import EncodedTurn, encode_turn
from .vocabulary_decoder import VocabularyDecoder

NUM_THREADS = 2
ENDING = 32  # number of tokens at the end of a prompt that are searched for an open reasoning block


class PromptReader:
    """Tokenizes prompts and checks them against the limits of the engine."""

    def __init__(self, tokenizer: TextTokenizer, info: RunnerInfo) -> None:
        self._tokenizer = tokenizer
        self._longest_piece = max(map(len, tokenizer.vocabulary.pieces))
        self._decoder = VocabularyDecoder(tokenizer.vocabulary)
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")
        self.control_ids = frozenset(tokenizer.vocabulary.special_ids)
        self.info = info  # replaced after a restart, because a new engine may have other sizes

    @cached_property
    def _bos(self) -> list[int]:
        """The BOS id that the tokenizer adds to every text, as a list; [] if it adds none."""
        with_marks, without = (self._tokenizer.encode("a", add_special_tokens=marks) for marks in (True, False))
        return with_marks[:1] if with_marks[1 : 1 + len(without)] == without else []

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids of the end-of-text tokens of the tokenizer and of the model."""
        return tuple(sorted({*self._tokenizer.vocabulary.eos_ids, *self.info.eos_token_ids}))

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the tokenizer."""
        return self._tokenizer.vocabulary

    @property
    def vocab_size(self) -> int:
        """Number of token ids that a request may use: the number of rows of the model's embedding.

        The highest ids may have no token; the model never outputs these ids (``StepPlan.num_token_ids``).
        """
        return self.info.vocab_size

    @property
    def size_difference(self) -> str:
        """A log message that tokenizer and embedding have different sizes; "" if the sizes are equal."""
        num_tokens, num_rows = self._tokenizer.vocab_size, self.info.vocab_size
        if num_tokens == num_rows:
            return ""
        sizes = f"The tokenizer has {num_tokens} token ids and the model's embedding has {num_rows} rows:"
        if num_tokens > num_rows:
            return f"{sizes} prompts with an id of {num_rows} or higher are refused."
        return f"{sizes} ids of {num_tokens} or higher are accepted in prompts but never generated."

    @property
    def extra_stop_ids(self) -> tuple[int, ...]:
        """The tokenizer's end-of-text ids that the model does not define; each request must list them as stop ids."""
        return tuple(i for i in self.eos_ids if i not in self.info.eos_token_ids and i < self.info.vocab_size)

    @property
    def tokenizer_info(self) -> dict[str, Any]:
        """See ``TextTokenizer.info``."""
        return self._tokenizer.info

    @property
    def pieces(self) -> list[bytes]:
        """The bytes of each token id."""
        return self._tokenizer.vocabulary.pieces

    def special_ids(self, texts: Iterable[str]) -> tuple[int, ...]:
        """Return the ids of the control tokens whose text is in ``texts``. End-of-text tokens are excluded."""
        written = {text.encode() for text in texts}
        ids = set(self._tokenizer.vocabulary.special_ids).difference(self.eos_ids)
        return tuple(sorted(i for i in ids if i < len(self.pieces) and self.pieces[i] in written))

    def ending(self, ids: list[int]) -> str:
        """Return the text of the last ``ENDING`` tokens of a prompt."""
        return b"".join(map(self.vocabulary.piece, ids[-ENDING:])).decode(errors="replace")

    async def chat(self, chat: ChatPrompt) -> list[int]:
        """Return the token ids of a conversation, rendered by the model's template.

        Raises Rejected if the template rejects a message, or if the conversation is too long.
        """
        self._check_size(_num_bytes(chat.messages) + _num_bytes(chat.tools), "messages")
        return await self._encode(lambda: self._tokenizer.encode_chat(chat), "messages")

    async def chat_turn(self, first: ChatPrompt, later: ChatPrompt) -> EncodedTurn:
        """Encode new messages twice: as the first and as a later turn of a conversation.

        Raises Rejected if the messages are too long, or if the template supports neither encoding.
        """
        self._check_size(_num_bytes(first.messages) + _num_bytes(first.tools), "messages")
        loop = asyncio.get_running_loop()
        turn = await loop.run_in_executor(self._pool, encode_turn, self._tokenizer, first, later)
        for ids in (turn.prompt, turn.continuation):
            self._check_embedded(ids, "messages")
        return turn

    async def text(self, text: str, *, add_special_tokens: bool = True, param: str = "prompt") -> list[int]:
        """Return the token ids of a raw prompt, which the request has in the field ``param``.

        Raises Rejected if the prompt is empty or too long, or contains a token without an embedding.
        """
        return _not_empty(await self.tokens_of(text, add_special_tokens=add_special_tokens, param=param), param)

    async def text_or_ids(
        self, prompt: str | list[Any], param: str, *, add_special_tokens: bool = True, text_param: str = "prompt"
    ) -> list[int]:
        """Return the token ids of a raw prompt, which is a string or a list of ids.

        Raises Rejected if the string is empty or too long, or if an id is invalid. The error names ``text_param`` for a
        string and ``param`` for ids.
        """
        if isinstance(prompt, str):
            return await self.text(prompt, add_special_tokens=add_special_tokens, param=text_param)
        return self.checked_ids(prompt, param)

    async def continuation(self, prompt: str | list[Any]) -> list[int]:
        """Return the token ids of a raw prompt that continues an earlier one, without a BOS token.

        Raises Rejected if the prompt is empty or too long, or if an id is invalid.
        """
        if isinstance(prompt, str):
            return await self.text(prompt, add_special_tokens=False)
        ids = self.checked_ids(prompt, "prompt")
        ids = ids[1:] if ids[:1] == self._bos else ids
        return _not_empty(ids, "prompt")

    async def tokens_of(self, text: str, *, add_special_tokens: bool, param: str = "prompt") -> list[int]:
        """Return the token ids of a string; [] if it is empty.

        If the text begins with the BOS token, no second BOS token is added. Raises Rejected if the text is too long for
        any prompt, or contains a token without an embedding.
        """
        self._check_size(_num_bytes(text), param)
        encode = partial(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)
        ids = await asyncio.get_running_loop().run_in_executor(self._pool, encode)
        if add_special_tokens and self._bos and ids[:2] == self._bos * 2:
            del ids[0]
        return self._check_embedded(ids, param)

    async def text_of(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Decode ``ids``. An id without a token decodes to no text."""
        decode = partial(self._decoder.decode, ids, skip_special_tokens=skip_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self._pool, decode)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token on its own; an incomplete character becomes U+FFFD."""
        return [self._decoder.decode([token], skip_special_tokens=False, begins=False) for token in ids]

    def checked_ids(self, ids: list[Any], param: str) -> list[int]:
        """Return ``ids`` unchanged. Raises Rejected unless each entry is an integer from 0 to ``vocab_size`` − 1."""
        for token in ids:
            if type(token) is not int or not 0 <= token < self.vocab_size:
                raise Rejected(
                    f"'{param}' has the entry {str(token)[:50]!r}, which is not a token id: ids are integers from 0 to"
                    f" {self.vocab_size - 1}.",
                    param=param,
                )
        return ids

    def clamped(self, prompt_len: int, wanted: int | None) -> int | None:
        """Return ``wanted``, limited to the number of output tokens for which there is room; None and 0 are unchanged.

        Raises Rejected if ``wanted`` is above 0 and the prompt leaves no room for output.
        """
        return min(wanted, self.max_tokens(prompt_len, None)) if wanted else wanted

    def check_num_messages(self, count: int) -> None:
        """Raise Rejected if ``count`` messages and tool calls exceed the context length: each has at least one token.

        The check runs before rendering, because rendering so many messages takes a long time.
        """
        if count > self.info.context_length:
            raise _too_long(
                f"'messages' has {count} messages and tool calls, more than this model's maximum context length of"
                f" {self.info.context_length} tokens.",
                "messages",
            )

    def check_prompt(self, prompt_len: int, param: str) -> None:
        """Raise Rejected ``context_length_exceeded`` if the prompt alone exceeds the context length or the KV pool."""
        context, pool = self.info.context_length, self.info.num_pages * self.info.page_size
        if prompt_len > context:
            raise _too_long(
                f"This model's maximum context length is {context} tokens, but '{param}' has {prompt_len} tokens."
                " Please shorten it.",
                param,
            )
        if not fits(prompt_len, 0, self.info):
            raise _too_long(
                f"'{param}' has {prompt_len} tokens, but the KV cache of this server holds {pool} tokens in total."
                " Please shorten it, or start the server with a larger --max-total-tokens.",
                param,
            )

    def max_tokens(
        self, prompt_len: int, wanted: int | None, *, default: int | None = None, name: str = "max_tokens"
    ) -> int:
        """Return the maximum number of output tokens: ``wanted`` or, if that is None, the number of tokens for which
        context and pool have room, but at most ``default``.

        Raises Rejected ``context_length_exceeded`` if prompt and output do not fit, computed as at admission. If a
        smaller ``wanted`` would fit, the error's ``param`` is ``name``, the request field that sets it.
        """
        context = self.info.context_length
        rest = context - prompt_len
        if rest < (1 if wanted is None else wanted):
            asked = f" and {wanted} for the completion" if wanted is not None else ""
            raise _too_long(
                f"This model's maximum context length is {context} tokens, but the request has {prompt_len} tokens in"
                f" the prompt{asked}. Please shorten the prompt or ask for fewer tokens.",
                param=name if rest > 0 else None,
            )
        pool = self.info.num_pages * self.info.page_size
        most = max(min(rest, pool - prompt_len + 1), 1)  # the K/V of the last output token is never written
        granted = wanted if wanted is not None else min(default or most, most)
        if not fits(prompt_len, granted, self.info):
            raise _too_long(
                f"The prompt has {prompt_len} tokens, but the KV cache of this server holds {pool} tokens in total."
                " Please shorten the prompt, or start the server with a larger --max-total-tokens."
            )
        return granted

    def close(self) -> None:
        """Stop the threads after their current work."""
        self._pool.shutdown()

    async def _encode(self, encode: Callable[[], list[int]], param: str) -> list[int]:
        ids = await asyncio.get_running_loop().run_in_executor(self._pool, encode)
        return _not_empty(self._check_embedded(ids, param), param)

    def _check_embedded(self, ids: list[int], param: str) -> list[int]:
        """Return ``ids``. Raises Rejected if an id has no row in the model's embedding."""
        if self._has_surplus_tokens and ids and (token := max(ids)) >= self.info.vocab_size:
            text = self.vocabulary.piece(token).decode(errors="replace")[:100]
            raise Rejected(
                f"'{param}' contains the token {text!r} with id {token}, but this model's embedding has only"
                f" {self.info.vocab_size} rows: the model was not trained with this token.",
                param=param,
            )
        return ids

    @property
    def _has_surplus_tokens(self) -> bool:
        return self._tokenizer.vocab_size > self.info.vocab_size

    def _check_size(self, num_bytes: int, param: str) -> None:
        # Do not tokenize text that has too many bytes to fit, whatever its tokens are.
        if num_bytes > self.info.context_length * self._longest_piece:
            raise _too_long(
                f"'{param}' has {num_bytes} bytes, more than this model's maximum context length of"
                f" {self.info.context_length} tokens can hold.",
                param,
            )


def _not_empty(ids: list[int], param: str) -> list[int]:
    if not ids:
        raise Rejected(f"'{param}' is empty: there is nothing to continue.", param=param)
    return ids


def _num_bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, dict):
        return sum(map(_num_bytes, value.values()))
    if isinstance(value, list):
        return sum(map(_num_bytes, value))
    return 0


def _too_long(message: str, param: str | None = None) -> Rejected:
    return Rejected(message, code="context_length_exceeded", param=param)
