"""Log-probabilities in the two shapes of the OpenAI API. Bytes come from the token, never from the display text."""

from __future__ import annotations

import codecs
import math
from typing import Any

from ebbtide.messages import TextAlternative, TextLogprob

NEVER = -9999.0  # JSON has no minus infinity


def chat_logprobs(entries: list[TextLogprob]) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat completion."""
    content = [
        {**_chat_entry(entry.chosen), "top_logprobs": [_chat_entry(top) for top in entry.top]} for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_entry(alternative: TextAlternative) -> dict[str, Any]:
    return {"token": alternative.token, "logprob": _finite(alternative.logprob), "bytes": list(alternative.raw)}


class CompletionLogprobs:
    """``choices[].logprobs`` of one choice of a text completion; offsets go on from one delta to the next."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def take(self, entries: list[TextLogprob]) -> dict[str, Any]:
        """The parallel lists for these tokens. A character split over tokens begins at the token that completes it."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(entry.chosen.raw))
        return {
            "tokens": [_display(entry.chosen) for entry in entries],
            "token_logprobs": [_finite(entry.chosen.logprob) for entry in entries],
            "top_logprobs": [
                {_display(one): _finite(one.logprob) for one in [*entry.top, entry.chosen]} for entry in entries
            ],
            "text_offset": offsets,
        }


def _display(alternative: TextAlternative) -> str:
    try:
        alternative.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{value:02x}" for value in alternative.raw)
    return alternative.token


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else NEVER
