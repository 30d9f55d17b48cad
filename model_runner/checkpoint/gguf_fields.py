"""The metadata of one GGUF file, read key by key. A key of the architecture that nothing reads refuses the file.

So a key cannot be dropped silently: it is read, or listed as without effect, or the file is refused. Knows no
architecture.
"""

from __future__ import annotations

from collections.abc import Collection

from ebbtide.errors import StartupError
from ebbtide.tokenization.gguf_header import GGUFHeader, StoredArray

# Keys below the architecture's prefix that llama.cpp does not use for the text of a decoder-only model either.
WITHOUT_EFFECT = {
    "rope.scaling.finetuned",  # a remark about the training
    "tensor_data_layout",  # a remark about the converter
    "pooling_type",  # of embeddings
    # A model has one kind of norm; the converter writes both when the original configuration has both.
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
}
# Other namespaces. ``general.architecture`` and the end tokens are read from them; the rest describes the file, or the
# tokenizer, which ebbtide/tokenization reads. Keys of any other namespace are notes of the tool that wrote the file.
TOKENIZER = "tokenizer."


class Fields:
    """The keys of one architecture, without their prefix."""

    def __init__(self, header: GGUFHeader, architecture: str) -> None:
        self._header = header
        self._prefix = f"{architecture}."
        self._read: set[str] = set(WITHOUT_EFFECT)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; of an array, the element that all layers share. Raises StartupError without key and default."""
        value = self.number(key, default)
        if not float(value).is_integer():
            raise self.refusal(key, f"is {value} and should be an integer")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A number; of an array, the element that all layers share. Raises StartupError without key and default."""
        value = self._value(key)
        if isinstance(value, StoredArray):
            value = self._shared(key)
        if value is None:
            value = default
        if value is None:
            raise self.refusal(key, "is missing")
        if isinstance(value, str):
            raise self.refusal(key, "is a text and should be a number")
        return value

    def text(self, key: str, default: str) -> str:
        """A text. Raises StartupError for another type."""
        value = self._value(key)
        if value is not None and not isinstance(value, str):
            raise self.refusal(key, "should be a text")
        return default if value is None else value

    def has(self, key: str) -> bool:
        """True if the file has the key. It still has to be read."""
        return self._prefix + key in self._header.metadata

    def expect(self, key: str, allowed: Collection[float]) -> None:
        """Refuse the file if it has the key with another value: ebbtide has only the allowed ones."""
        if self.has(key) and (value := self.number(key)) not in allowed:
            raise self.refusal(key, f"is {value:g}, which is not supported")

    def array(self, key: str) -> list[float]:
        """The numbers of an array; [] without the key."""
        self._read.add(key)
        values = self._header.array(self._prefix + key)
        if any(isinstance(value, str) for value in values):
            raise self.refusal(key, "is an array of texts and should be one of numbers")
        return [float(value) for value in values]

    def refuse_unread(self) -> None:
        """Raises StartupError that names a key of the architecture that was not read."""
        keys = (key.removeprefix(self._prefix) for key in self._header.metadata if key.startswith(self._prefix))
        for key in keys:
            if key not in self._read:
                raise self.refusal(key, "is not supported for this architecture")

    def refusal(self, key: str, reason: str) -> StartupError:
        """The error about one key."""
        return StartupError(
            f"The GGUF file {self._header.path} cannot be served: its key {self._prefix}{key} {reason}."
        )

    def _value(self, key: str) -> float | str | StoredArray | None:
        self._read.add(key)
        return self._header.metadata.get(self._prefix + key)

    def _shared(self, key: str) -> float | None:
        values = set(self.array(key))
        if len(values) > 1:
            raise self.refusal(
                key, f"differs from layer to layer ({min(values):g} to {max(values):g}), which is not supported"
            )
        return values.pop() if values else None
