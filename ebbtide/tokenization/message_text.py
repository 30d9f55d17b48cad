"""Encodes rendered chats so that message text that looks like a control token is encoded as plain text."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class MessageShield:
    """Replaces control-token lookalikes in messages by placeholders before rendering, and restores them afterwards."""

    def __init__(self, special_text: re.Pattern[str]) -> None:
        self._special_text = special_text
        # The placeholder is random, so that no client can forge it, and ASCII, because a template may escape other
        # characters in JSON.
        self._mark = f"~{secrets.token_hex(8)}:"
        self._hidden: list[str] = []

    @property
    def is_used(self) -> bool:
        """True if a string has been replaced by a placeholder."""
        return bool(self._hidden)

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the message with placeholders in all its strings, at any depth.

        The role is left unchanged, because the server sets it.
        """
        return {key: value if key == "role" else self.value(value) for key, value in message.items()}

    def tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        """Return a tool definition with placeholders in all its strings."""
        return {key: self.value(value) for key, value in tool.items()}

    def value(self, value: Any) -> Any:
        """Return a JSON value with placeholders in all its strings."""
        return _map_text(value, self._guard)

    def restored(self, rendered: str) -> str:
        """Return the rendered chat with the original texts in place of the placeholders."""
        return re.sub(f"{self._mark}(\\d+)~", lambda match: self._hidden[int(match[1])], rendered)

    def _guard(self, text: str) -> str:
        return self._special_text.sub(self._hide, text)

    def _hide(self, match: re.Match[str]) -> str:
        self._hidden.append(match.group())
        return f"{self._mark}{len(self._hidden) - 1}~"


class RenamedControlTokens:
    """A copy of a tokenizer whose control tokens have secret names, so that no client's text can contain one.

    The option ``encode_special_tokens`` of the tokenizers library is not enough. Some tokenizer models (Unigram, or BPE
    with ``ignore_merges``) still match control tokens, because these are also in the base vocabulary. Encoding the text
    in parts is not possible either: SentencePiece tokenizers add a space before each part.
    """

    def __init__(self, backend: Any, special: Mapping[int, str]) -> None:
        """special: id → text of the control tokens."""
        state = json.loads(backend.to_str())
        mark = secrets.token_hex(8)
        unknown = _unknown_token(state["model"])
        self._names = {text: f"~{mark}:{i}~" for i, text in special.items() if text != unknown}
        state["added_tokens"] = [self._renamed(token) for token in state["added_tokens"] if token["content"] != unknown]
        state["post_processor"] = None  # the tokenizer must not add special tokens to a chat
        _rename_in_model(state["model"], self._names)
        self._backend = type(backend).from_str(json.dumps(state))
        self._text = re.compile("|".join(re.escape(text) for text in longest_first(self._names)) or r"(?!)")

    def renamed(self, template_text: str) -> str:
        """Return the text with every control token replaced by its secret name."""
        return self._text.sub(lambda match: self._names[match.group()], template_text)

    def encode(self, text: str) -> list[int]:
        """Encode a text in which control tokens have their secret names. Everything else is encoded as plain text."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def _renamed(self, token: dict[str, Any]) -> dict[str, Any]:
        name = self._names.get(token["content"])
        return token if name is None else token | {"content": name, "single_word": False}


def longest_first(texts: Iterable[str]) -> list[str]:
    """Return the texts in the order in which a regular expression must try them: the longest first."""
    return sorted((text for text in texts if text), key=len, reverse=True)


def _unknown_token(model: Mapping[str, Any]) -> str | None:
    """Return the unknown token, which must not be renamed: the tokenizer model looks it up by its text."""
    if isinstance(model.get("unk_id"), int):
        return str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")


def _rename_in_model(model: dict[str, Any], names: Mapping[str, str]) -> None:
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: [text, score]
        model["vocab"] = [[names.get(text, text), score] for text, score in vocab]
        return
    model["vocab"] = {names.get(text, text): i for text, i in vocab.items()}
    if "merges" in model:
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [merge for merge in merges if not names.keys() & {*merge, "".join(merge)}]


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_text(entry, change) for entry in value]
    if isinstance(value, dict):
        return {change(key): _map_text(entry, change) for key, entry in value.items()}
    return value
