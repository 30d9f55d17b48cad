"""Scripted outputs of the simulated model: the text of a prompt selects the exact output bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ebbtide.errors import StartupError

Output = Sequence[int | None]
Rule = tuple[tuple[bytes, ...], Output]  # (texts that a prompt must contain, the output)


class SimScript:
    """Maps prompts (text without control tokens) to output bytes.

    The output of the longest matching prefix is used. If no prefix matches, the first rule is used whose texts are all
    in the prompt. An output may contain None in place of a byte: the logits at this position are then NaN.
    """

    def __init__(self, outputs: Mapping[bytes, Output], rules: Sequence[Rule] = ()) -> None:
        self._outputs = sorted(outputs.items(), key=lambda entry: -len(entry[0]))
        self._rules = rules

    def __bool__(self) -> bool:
        return bool(self._outputs or self._rules)

    @classmethod
    def load(cls, path: str) -> SimScript:
        """Read a JSON object of prefix → output, or a list of ``{"contains": [text, …], "output": output}``.

        An output is a string, or a list of byte values and nulls. Raises StartupError if the file has another format.
        """
        try:
            entries = json.loads(Path(path).read_text(encoding="utf-8"))
            if isinstance(entries, list) and entries:
                return cls({}, [_rule(entry) for entry in entries])
            return cls({prefix.encode(): _bytes(output) for prefix, output in entries.items()})
        except (OSError, ValueError, TypeError, AttributeError, RecursionError, KeyError) as error:
            raise StartupError(
                f"--sim-script {path} is neither a JSON object of prompt prefix to output nor a list of objects with"
                f" contains and output: {type(error).__name__} {error}"
            ) from error

    def output_for(self, prompt: Sequence[int]) -> Output:
        """Return the scripted output for a prompt; empty if there is none. prompt: token ids."""
        text = bytes(token for token in prompt if token < 256)
        by_prefix = (output for prefix, output in self._outputs if text.startswith(prefix))
        by_content = (output for texts, output in self._rules if all(part in text for part in texts))
        return next(by_prefix, next(by_content, b""))


def _rule(entry: dict[str, Any]) -> Rule:
    return tuple(text.encode() for text in entry["contains"]), _bytes(entry["output"])


def _bytes(output: object) -> Output:
    if isinstance(output, str):
        return output.encode()
    if isinstance(output, list) and None in output:
        bytes(value for value in output if value is not None)  # raises if a value is not a byte
        return output
    if isinstance(output, list):
        return bytes(output)
    raise ValueError(f"an output must be a string or a list of bytes, not {output!r}")
