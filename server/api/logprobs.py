"""Log-probabilities in the formats of the OpenAI API and of vLLM.

The field ``bytes`` contains the bytes of the token, not of its decoded text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from ebbtide.messages import TextAlternative, TextLogprob

from .token_offsets import TokenOffsets, continues

MIN_LOGPROB = -9999.0  # replaces minus infinity, which JSON cannot represent

Lists = dict[str, list[Any]]  # OpenAI's parallel lists: tokens, token_logprobs, top_logprobs, text_offset
Name = Callable[[TextAlternative], str]


def as_text(alternative: TextAlternative) -> str:
    """Name a token by its text, or by its bytes if they are not complete characters."""
    try:
        alternative.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{value:02x}" for value in alternative.raw)
    return alternative.token


def as_id(alternative: TextAlternative) -> str:
    """Name a token by its id, which, unlike its text, is unique."""
    return f"token_id:{alternative.token_id}"


def chat_logprobs(entries: list[TextLogprob], *, as_ids: bool = False) -> dict[str, Any]:
    """Return ``choices[].logprobs`` of a chat completion."""
    content = [
        {
            **_chat_entry(entry.chosen, as_ids=as_ids),
            "top_logprobs": [_chat_entry(top, as_ids=as_ids) for top in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_entry(alternative: TextAlternative, *, as_ids: bool) -> dict[str, Any]:
    return {
        "token": as_id(alternative) if as_ids else alternative.token,
        "logprob": _finite(alternative.logprob),
        "bytes": list(alternative.raw),
    }


def prompt_logprobs(entries: list[TextLogprob], num_top: int) -> list[dict[str, dict[str, Any]] | None]:
    """Return vLLM's ``prompt_logprobs``: None for the first token, then one map per token.

    The keys of a map are the ids of the actual token and of the most likely tokens.
    """
    return [None, *(_ranked(entry, num_top) for entry in entries)]


def _ranked(entry: TextLogprob, num_top: int) -> dict[str, dict[str, Any]]:
    ranked: dict[str, dict[str, Any]] = {}
    for rank, one in [(entry.rank, entry.chosen), *enumerate(entry.top[:num_top], start=1)]:
        values = {"logprob": _finite(one.logprob), "rank": rank, "decoded_token": one.token}
        ranked.setdefault(str(one.token_id), values)
    return ranked


class CompletionLogprobs:
    """Builds ``choices[].logprobs`` of one choice of a text completion.

    The offsets continue from one delta to the next.

    offset: number of characters before the output.
    incomplete: bytes of the incomplete character at the end of the prompt.
    hidden: ids of the control tokens that are decoded to no text.
    """

    def __init__(self, name: Name, *, offset: int = 0, incomplete: bytes = b"", hidden: Collection[int] = ()) -> None:
        self._name = name
        self._offsets = TokenOffsets(offset)
        self._incomplete = incomplete
        self._hidden = hidden

    def next_lists(self, entries: list[TextLogprob]) -> Lists:
        """Return the lists for the next output tokens.

        The tokens of a split character have the offset of its first byte.
        """
        return _lists(entries, [self._offset(entry.chosen) for entry in entries], self._name)

    def _offset(self, token: TextAlternative) -> int:
        raw = b"" if token.token_id in self._hidden else token.raw
        if raw and self._incomplete:
            # As in the text, the incomplete character of the prompt counts only if the output completes it.
            self._offsets.begin_character(self._incomplete if continues(raw) else b"")
            self._incomplete = b""
        return self._offsets.next(raw)


def echoed_logprobs(
    first: TextAlternative, entries: list[TextLogprob], offsets: list[int], *, num_top: int, name: Name
) -> Lists:
    """Return the lists for a prompt. The token ``first`` has no log-probability; ``offsets`` includes its offset."""
    lists = _lists([TextLogprob(entry.chosen, entry.top[:num_top]) for entry in entries], offsets[1:], name)
    return joined_lists({key: [value] for key, value in zip(lists, (name(first), None, None, 0), strict=True)}, lists)


def joined_lists(front: Lists, back: Lists) -> Lists:
    """Return, for each key, the list of ``front`` followed by the list of ``back``."""
    return {key: front[key] + back[key] for key in back}


def _lists(entries: list[TextLogprob], offsets: list[int], name: Name) -> Lists:
    return {
        "tokens": [name(entry.chosen) for entry in entries],
        "token_logprobs": [_finite(entry.chosen.logprob) for entry in entries],
        "top_logprobs": [{name(one): _finite(one.logprob) for one in [*entry.top, entry.chosen]} for entry in entries],
        "text_offset": offsets,
    }


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else MIN_LOGPROB
