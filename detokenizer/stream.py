"""Incremental decoding of one request's output: converts bytes to characters and finds stop strings.

The concatenated output equals the text of all tokens decoded at once, cut at the first complete stop string. The result
does not depend on how the tokens are divided among the calls of ``push``.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide.messages import StreamStart

from .pieces import Pieces
from .stop_strings import StopMatcher


@dataclass(frozen=True, slots=True)
class DecodedText:
    """Text that may be sent to the client."""

    text: str
    num_tokens: int  # number of the tokens passed to ``push`` that belong to the output
    stop: str | None = None  # the stop string that the last of these tokens completed; it ends the output
    num_shown: int | None = (
        None  # if ``stop`` is set: smallest number of output tokens whose text includes all released text
    )


class TextStream:
    """Decodes the output of one request incrementally, at constant cost per token.

    It holds back at most three bytes of an incomplete character, and the longest suffix that may begin a stop string.
    """

    def __init__(self, pieces: Pieces, start: StreamStart) -> None:
        self.num_tokens = 0
        self._pieces = pieces
        self._params = start.text
        self._stops = [StopMatcher(stop) for stop in start.text.stop if stop]
        self._held = ""
        self._num_released = 0  # characters
        self._ends: list[int] = []  # per output token: number of characters up to its end; empty without stop strings
        self._pending = b""
        prompt = pieces.joined(start.prompt_tail, skip_special=False)
        # An incomplete character at the end of the prompt; None once the first output bytes have been decoded.
        self._prompt_rest: bytes | None = prompt[_decode(prompt)[1] :]
        self._strip_space = pieces.strips_first_space and not start.prompt_tail

    def push(self, tokens: Sequence[int]) -> DecodedText:
        """Decode the next output tokens. Do not call it after a stop string was found."""
        if not self._stops:
            self.num_tokens += len(tokens)
            data = b"".join(map(self._bytes, tokens))
            return DecodedText(self._characters(data), len(tokens))
        parts: list[str] = []
        for index, token in enumerate(tokens):
            self.num_tokens += 1
            text = self._characters(self._bytes(token))
            self._ends.append((self._ends[-1] if self._ends else 0) + len(text))
            stop = self._scan(text, parts)
            if stop is not None:
                self._num_released += sum(map(len, parts))
                return DecodedText("".join(parts), index + 1, stop, self._num_shown())
        self._num_released += sum(map(len, parts))
        return DecodedText("".join(parts), len(tokens))

    def _num_shown(self) -> int:
        """Return the smallest number of tokens whose text includes all released text."""
        return bisect_left(self._ends, self._num_released) + 1 if self._num_released else 0

    def shows_stop_token(self, stop_token: int) -> bool:
        """Return True if the text of the stop token is part of the output."""
        return stop_token in self._params.shown_stop_ids

    def flush(self) -> str:
        """Return the text held back at the end of the output. An incomplete character becomes U+FFFD."""
        rest = self._held + _decode(self._pending, final=True)[0]
        self._held, self._pending = "", b""
        return rest

    def _bytes(self, token: int) -> bytes:
        params = self._params
        return self._pieces.of(token, skip_special=params.skip_special_tokens and token not in params.shown_ids)

    def _scan(self, text: str, parts: list[str]) -> str | None:
        """Append to ``parts`` the text that cannot belong to a stop string. Return the matched stop string, or None.

        The match that ends first wins, so that the result does not depend on token boundaries. If two matches end
        together, the longer one wins.
        """
        if not text:
            return None
        matches = [(end, -len(m.stop), m.stop) for m in self._stops if (end := self._find_stop(m, text)) >= 0]
        window = self._held + text
        if matches:
            end, minus_length, stop = min(matches)
            cut = len(self._held) + end + (0 if self._params.include_stop else minus_length)
            parts.append(window[:cut])
            self._held, self._pending = "", b""
            return stop
        keep = len(window) - max(matcher.held for matcher in self._stops)
        parts.append(window[:keep])
        self._held = window[keep:]
        return None

    def _find_stop(self, matcher: StopMatcher, text: str) -> int:
        end = matcher.find(text)
        if self.num_tokens >= self._params.min_tokens:
            return end
        offset = 0
        while end >= 0:  # a match before min_tokens does not count; search the rest of the text
            offset += end
            end = matcher.find(text[offset:])
        return -1

    def _characters(self, data: bytes) -> str:
        if not data:
            return ""
        if self._prompt_rest is not None:
            data = self._join_to_prompt(data, self._prompt_rest)
            self._prompt_rest = None
        data = self._pending + data
        text, used = _decode(data)
        self._pending = data[used:]
        return text

    def _join_to_prompt(self, data: bytes, prompt_rest: bytes) -> bytes:
        if self._strip_space:
            return data.removeprefix(b" ")
        # An incomplete character at the end of the prompt is part of the output only if the output completes it.
        return prompt_rest + data if 0x80 <= data[0] < 0xC0 else data


def _decode(data: bytes, *, final: bool = False) -> tuple[str, int]:
    """Decode UTF-8.

    Returns the text and the number of bytes used. An incomplete character at the end is decoded only if ``final``.
    """
    return codecs.utf_8_decode(data, "replace", final)
