"""Scripted outputs for the simulated model: the prefix of a prompt selects the exact output bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ebbtide.errors import StartupError


class SimScript:
    """Maps prompt prefixes (text without control tokens) to output bytes; the longest matching prefix wins."""

    def __init__(self, outputs: Mapping[bytes, bytes]) -> None:
        self._outputs = sorted(outputs.items(), key=lambda entry: -len(entry[0]))

    def __bool__(self) -> bool:
        return bool(self._outputs)

    @classmethod
    def load(cls, path: str) -> SimScript:
        """Read a JSON object of prefix → output; an output is a string, or a list of bytes if it is not UTF-8.

        Raises StartupError if the file does not hold such an object.
        """
        try:
            entries = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls({prefix.encode(): _bytes(output) for prefix, output in entries.items()})
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise StartupError(
                f"--sim-script {path} is not a JSON object of prompt prefix to output: {error}"
            ) from error

    def output_for(self, prompt: Sequence[int]) -> bytes:
        """The scripted output of a prompt given as token ids; b"" if there is none."""
        text = bytes(token for token in prompt if token < 256)
        return next((output for prefix, output in self._outputs if text.startswith(prefix)), b"")


def _bytes(output: object) -> bytes:
    if isinstance(output, str):
        return output.encode()
    if isinstance(output, list):
        return bytes(output)
    raise ValueError(f"an output must be a string or a list of bytes, not {output!r}")
