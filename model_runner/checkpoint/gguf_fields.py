"""The metadata of one GGUF file, read key by key. If a key of the architecture is not read, the file is refused.

No key is therefore ignored silently: it is read, it is listed as having no effect, or the file is refused. The module
does not depend on a specific architecture.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite

from ebbtide.errors import StartupError
from ebbtide.tokenization.gguf_header import GGUFHeader, StoredArray

# Keys with the architecture's prefix that have no effect on the output of a decoder-only model, in llama.cpp either.
WITHOUT_EFFECT = {
    "rope.scaling.finetuned",  # describes the training only
    "tensor_data_layout",  # describes the converter only
    "pooling_type",  # affects embeddings only
    # A model has one kind of norm, but the converter writes both epsilons if the original configuration has both.
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
}
# Keys of the namespaces ``general.`` and ``tokenizer.`` describe the file and the tokenizer. Of these, model_runner
# reads only ``general.architecture`` and the end tokens; ebbtide/tokenization reads the tokenizer.
TOKENIZER = "tokenizer."


class Fields:
    """The keys of one architecture, without their prefix."""

    def __init__(self, header: GGUFHeader, architecture: str) -> None:
        self._header = header
        self._prefix = f"{architecture}."
        self._read: set[str] = set(WITHOUT_EFFECT)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return the integer value of a key. If the value is an array, all its elements must be equal.

        Raises StartupError if the value is not an integer, or if the key is missing and there is no default.
        """
        value = self.number(key, default)
        if not float(value).is_integer():
            raise self.refusal(key, f"is {value} and should be an integer")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """Return the numeric value of a key. If the value is an array, all its elements must be equal.

        Raises StartupError if the value is not a finite number, or if the key is missing and there is no default.
        """
        value = self._value(key)
        if isinstance(value, StoredArray):
            value = self._shared(key)
        if value is None:
            value = default
        if value is None:
            raise self.refusal(key, "is missing")
        if isinstance(value, str):
            raise self.refusal(key, "is a string and should be a number")
        if not isfinite(value):
            raise self.refusal(key, f"is {value:g} and should be a finite number")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """Return an integer as ``integer`` does. Raises StartupError if it is not positive."""
        self.positive(key, default)
        return self.integer(key, default)

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a number as ``number`` does. Raises StartupError if it is not positive."""
        value = self.number(key, default)
        if value <= 0:
            raise self.refusal(key, f"is {value:g} and should be a positive number")
        return value

    def text(self, key: str, default: str) -> str:
        """Return the string value of a key. Raises StartupError if the value has another type."""
        value = self._value(key)
        if value is not None and not isinstance(value, str):
            raise self.refusal(key, "should be a string")
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Return True if the file has the key. The key does not count as read."""
        return self._prefix + key in self._header.metadata

    def expect(self, key: str, allowed: Collection[float]) -> None:
        """Raise StartupError if the file has the key with a value that is not in ``allowed``."""
        if self.has(key) and (value := self.number(key)) not in allowed:
            raise self.refusal(key, f"is {value:g}, which is not supported")

    def array(self, key: str) -> list[float]:
        """Return the numbers of an array; [] if the file does not have the key."""
        self._read.add(key)
        values = self._header.array(self._prefix + key)
        if any(isinstance(value, str) for value in values):
            raise self.refusal(key, "is an array of strings and should be one of numbers")
        return [float(value) for value in values]

    def refuse_unread(self) -> None:
        """Raise a StartupError that names an unread key of the architecture if there is one."""
        keys = (key.removeprefix(self._prefix) for key in self._header.metadata if key.startswith(self._prefix))
        for key in keys:
            if key not in self._read:
                raise self.refusal(key, "is not supported for this architecture")

    def refusal(self, key: str, reason: str) -> StartupError:
        """Return the StartupError for one key. reason: predicate of which the key is the subject."""
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
