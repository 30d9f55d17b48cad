"""Converts items and content blocks without an equivalent in a chat, such as searches on another server, to text."""

from __future__ import annotations

import json
from typing import Any

# Fields that are left out: types, ids and states, which mean nothing to the model, and encrypted content.
HIDDEN = ("type", "id", "status", "call_id", "tool_use_id", "cache_control", "encrypted_content", "signature")
MAX_WORD = 1000  # maximum number of characters in a word; text with a longer word is treated as encoded data


def as_text(item: dict[str, Any]) -> str:
    """Return the type and the fields of ``item`` as text. Encoded data is replaced by its length."""
    shown = {key: _readable(value) for key, value in item.items() if key not in HIDDEN and value is not None}
    return f"[{str(item.get('type'))[:100]}] {json.dumps(shown, ensure_ascii=False)}"


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _readable(entry) for key, entry in value.items() if key not in HIDDEN[-2:]}
    if isinstance(value, list):
        return [_readable(entry) for entry in value]
    if isinstance(value, str) and len(value) > MAX_WORD and max(map(len, value.split())) > MAX_WORD:
        return f"({len(value)} characters of data)"
    return value
