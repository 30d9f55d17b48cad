"""Log-probabilities in the shapes of the OpenAI API and of vLLM. Bytes come from the token, never from the text."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from ebbtide.messages import TextAlternative, TextLogprob

from .token_offsets import TokenOffsets, continues

NEVER = -9999.0  # JSON has no minus infinity

Lists = dict[str, list[Any]]  # OpenAI's parallel lists: tokens, token_logprobs, top_logprobs, text_offset
Name = Callable[[TextAlternative], str]


def as_text(alternative: TextAlternative) -> str:
    """A token in the lists of a text completion: its text, or its bytes when they are no whole characters."""
    try:
        alternative.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{value:02x}" for value in alternative.raw)
    return alternative.token


def as_id(alternative: TextAlternative) -> str:
    """A token by its number, for clients that want no doubt."""
    return f"token_id:{alternative.token_id}"


def chat_logprobs(entries: list[TextLogprob], *, as_ids: bool = False) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat completion."""
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
    """vLLM's ``prompt_logprobs``: nothing for the first token, then by id the token that is there and the likeliest."""
    return [None, *(_ranked(entry, num_top) for entry in entries)]


def _ranked(entry: TextLogprob, num_top: int) -> dict[str, dict[str, Any]]:
    ranked: dict[str, dict[str, Any]] = {}
    for rank, one in [(entry.rank, entry.chosen), *enumerate(entry.top[:num_top], start=1)]:
        values = {"logprob": _finite(one.logprob), "rank": rank, "decoded_token": one.token}
        ranked.setdefault(str(one.token_id), values)
    return ranked


class CompletionLogprobs:
    """``choices[].logprobs`` of one choice of a text completion; offsets go on from one delta to the next.

    offset: length of the text before the answer. half: the bytes of a character that the prompt ended within.
    hidden: control tokens that have no text.
    """

    def __init__(self, name: Name, *, offset: int = 0, half: bytes = b"", hidden: Collection[int] = ()) -> None:
        self._name = name
        self._places = TokenOffsets(offset)
        self._half = half
        self._hidden = hidden

    def next_lists(self, entries: list[TextLogprob]) -> Lists:
        """The lists for these output tokens. A character split over tokens begins where its first byte does."""
        return _lists(entries, [self._place(entry.chosen) for entry in entries], self._name)

    def _place(self, token: TextAlternative) -> int:
        raw = b"" if token.token_id in self._hidden else token.raw
        if raw and self._half:
            # As in the text: what the prompt left incomplete counts only if the answer goes on with it.
            self._places.half(self._half if continues(raw) else b"")
            self._half = b""
        return self._places.next(raw)


def echoed_logprobs(
    first: TextAlternative, entries: list[TextLogprob], offsets: list[int], *, num_top: int, name: Name
) -> Lists:
    """The lists for a prompt; of its ``first`` token no log-probability is known. ``offsets`` has it too."""
    lists = _lists([TextLogprob(entry.chosen, entry.top[:num_top]) for entry in entries], offsets[1:], name)
    return joined_lists({key: [value] for key, value in zip(lists, (name(first), None, None, 0), strict=True)}, lists)


def joined_lists(front: Lists, back: Lists) -> Lists:
    """The lists of two stretches of tokens, one after the other."""
    return {key: front[key] + back[key] for key in back}


def _lists(entries: list[TextLogprob], offsets: list[int], name: Name) -> Lists:
    return {
        "tokens": [name(entry.chosen) for entry in entries],
        "token_logprobs": [_finite(entry.chosen.logprob) for entry in entries],
        "top_logprobs": [{name(one): _finite(one.logprob) for one in [*entry.top, entry.chosen]} for entry in entries],
        "text_offset": offsets,
    }


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else NEVER
