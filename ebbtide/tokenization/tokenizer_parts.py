"""The parts of a Hugging Face tokenizer that ebbtide uses, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A tokenizer and its settings.

    Attributes:
        backend: a ``tokenizers.Tokenizer``.
        class_name: name of the tokenizer's class in transformers.
        special: id → text of the control tokens.
        named: special tokens by their names in tokenizer_config.json, such as eos_token; also template variables.
        chat_template: one template, several templates by name, or None.
        eos_ids: ids of the tokens that end a text.
    """

    backend: Any
    class_name: str
    special: dict[int, str]
    named: dict[str, Any] = field(default_factory=dict)
    chat_template: str | dict[str, str] | None = None
    eos_ids: frozenset[int] = frozenset()
