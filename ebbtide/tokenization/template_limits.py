"""Limits the steps, the time and the text sizes of one rendering of a chat template.

A template comes with the model. Four lines in it can loop for hours or produce gigabytes, so each operation that could
do so is counted. This module computes sizes; template_environment.py calls it from jinja's hooks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sized
from typing import Any

from jinja2 import TemplateError, Undefined
from jinja2.utils import Namespace

TEXT, TEXT_PER_INPUT = 1 << 20, 8  # maximum number of characters of a text: a constant, plus this per input character
# Multiples of the limit of a text: a list or dict may contain more, because templates copy messages from list to list;
# all that a template writes may be longer, because the text of a nested macro is written several times.
HELD_PER_TEXT, WRITTEN_PER_TEXT = 8, 16
STEPS, STEPS_PER_INPUT = 500_000, 100
CPU_S, CPU_S_PER_INPUT = 5.0, 2e-6
STEPS_PER_CLOCK = 16
GRACE_S = 1.0  # seconds of wall-clock time until the CPU time is measured
SCALAR = 8  # assumed number of characters of a number, a null or a separator
BITS = 4096  # maximum size of an integer
MAX_NUMBER = 100  # maximum number of decimal places in ``round``, and maximum indent
SCALARS = frozenset((int, float, bool, type(None)))
DIGITS = re.compile(r"\d+")


class TemplateLimitError(TemplateError):
    """The template exceeds a limit. The message names the limit."""


class RenderLimits:
    """The limits of one rendering. They grow with the size of its input.

    Attributes:
        text: maximum number of characters of a text.
        held: maximum number of characters in a list or dict.
    """

    def __init__(self, inputs: Iterable[Any]) -> None:
        size = text_size(list(inputs), 1 << 32)
        self.text = TEXT + TEXT_PER_INPUT * size
        self.held = HELD_PER_TEXT * self.text
        self._writable = WRITTEN_PER_TEXT * self.text
        self._max_steps = self._steps = STEPS + STEPS_PER_INPUT * size
        self._max_s = CPU_S + CPU_S_PER_INPUT * size
        self._begin = time.monotonic()
        self._deadline: float | None = None

    def step(self) -> None:
        """Count one loop iteration, call or operation. Raises TemplateLimitError if the limit is exceeded."""
        self._steps -= 1
        if self._steps < 0:
            raise TemplateLimitError(f"it takes more than {self._max_steps} steps")
        if self._steps % STEPS_PER_CLOCK == 0 and time.monotonic() > self._begin + GRACE_S:
            self._check_time()

    def check_text(self, num_chars: int) -> None:
        """Raise TemplateLimitError if a text of ``num_chars`` characters is too long."""
        if num_chars > self.text:
            raise TemplateLimitError(f"it makes a text of more than {self.text} characters")

    def check_held(self, value: Any) -> None:
        """Raise TemplateLimitError if ``value``, a list or dict, contains too many characters."""
        if type(value) is not str and text_size(value, self.held) > self.held:
            raise TemplateLimitError(f"it makes a value of more than {self.held} characters")

    def write(self, value: Any) -> None:
        """Count the characters of a value that the template writes. Raises TemplateLimitError if there are too many."""
        size = len(value) if isinstance(value, str) else text_size(value, self.text)
        self.check_text(size)
        self._writable -= size
        if self._writable < 0:
            raise TemplateLimitError(f"it writes more than {WRITTEN_PER_TEXT * self.text} characters")

    def _check_time(self) -> None:
        """Limit the CPU time of this thread. A limit on the wall-clock time would refuse chats on a busy machine.

        The CPU clock is slow to read, so short renderings do not read it.
        """
        now = time.thread_time()
        self._deadline = self._deadline or now + self._max_s
        if now > self._deadline:
            raise TemplateLimitError(f"it takes more than {self._max_s:.0f} s")


def text_size(value: Any, limit: int) -> int:
    """Return the approximate number of characters of ``str(value)``. Counting stops above ``limit``.

    A list that is contained twice is counted twice.
    """
    size, rest = 0, [value]
    while rest and size <= limit:
        item = rest.pop()
        size += SCALAR
        kind = type(item)
        if kind is str:
            size += len(item)
        elif kind is dict:
            rest.extend(item)
            rest.extend(item.values())
        elif kind is list or kind is tuple:
            rest.extend(item)
        elif kind not in SCALARS:
            rest.extend(_entries(item))
            size += len(item) if isinstance(item, str | bytes) else 0
    return size


def _entries(item: Any) -> Iterable[Any]:
    """Return those parts of ``item`` that ``str(item)`` contains. ``item`` is not plain JSON."""
    if isinstance(item, Mapping):
        return [*item.keys(), *item.values()]
    if isinstance(item, Namespace):
        return [object.__getattribute__(item, "_Namespace__attrs")]  # jinja hides it from templates
    is_container = isinstance(item, Sized) and isinstance(item, Iterable)
    return item if is_container and not isinstance(item, range | str | bytes | Undefined) else ()


def product_size(left: Any, right: Any, limit: int) -> int:
    """Return the approximate number of characters of ``left * right``; more than ``limit`` if it is too large."""
    if isinstance(left, int) and isinstance(right, int):
        return limit + 1 if left.bit_length() + right.bit_length() > BITS else 0
    repeated, times = (right, left) if isinstance(left, int) else (left, right)
    return text_size(repeated, limit) * times if isinstance(times, int) and isinstance(repeated, Sized) else 0


def power_size(left: Any, right: Any, limit: int) -> int:
    """Return a number above ``limit`` if ``left ** right`` is an integer of more than ``BITS`` bits, else 0."""
    whole = isinstance(left, int) and isinstance(right, int)
    return limit + 1 if whole and left.bit_length() * max(right, 0) > BITS else 0


def format_size(layout: str, mark: str, values: Any, limit: int) -> int:
    """Return an upper bound of the number of characters of ``layout`` formatted with ``values``.

    mark: the character that begins a field. A field's width is in the layout or is itself one of the values ("*", or a
        field within a field).
    """
    widths = sum(int(digits[:12]) for digits in DIGITS.findall(layout))
    if "*" in layout or layout.count(mark) > layout.count(mark * 2) * 2 + 1:
        widths += max((abs(value) for value in _integers(values) if value.bit_length() > 20), default=0)
    return len(layout) + widths + layout.count(mark) * text_size(values, limit)


def method_size(owner: Any, name: str, values: list[Any], limit: int) -> int:
    """Return an upper bound of the number of characters that a method of a str, bytes or int object returns."""
    size, number = len(owner) if isinstance(owner, Sized) else 0, _largest(values)
    match name:
        case "center" | "ljust" | "rjust" | "zfill" | "to_bytes":
            return size + number
        case "expandtabs" | "translate":
            return size * max(number, text_size(values, limit))
        case "replace":
            return size + replaced_size(owner, values)
        case "join":
            return size * len(values[0]) + text_size(values, limit) if values else 0
        case "format" | "format_map":
            return format_size(owner, "{", values, limit)
    return size


def filtered_size(name: str, values: list[Any], limit: int) -> int:
    """Return an upper bound of the number of characters that a filter returns; 0 for filters that need no check.

    values: the input and the arguments of the filter.
    """
    first, *others = values
    match name:
        case "join":
            return text_size(first, limit) + len(first) * text_size(others, limit)
        case "replace":
            return replaced_size(str(first), [str(value) for value in others])
        case "format":
            return format_size(str(first), "%", others, limit)
        case "indent":
            widths = [len(other) if isinstance(other, str) else abs(other) for other in others[:1]]
            return (str(first).count("\n") + 1) * max([4, *widths])
        case "round" | "tojson":
            return limit + 1 if _largest(others) > MAX_NUMBER else 0
    return _padded_size(name, first, others, limit)


def _padded_size(name: str, first: Any, others: list[Any], limit: int) -> int:
    """``filtered_size`` for the filters that fill or divide a text or a list."""
    match name:
        case "center":
            return len(str(first)) + _largest(others)
        case "wordwrap":
            return len(str(first)) * (1 + text_size(others, limit))
        case "slice" | "batch":  # the number of lists, or the length to which the last one is filled
            return _largest(others) * text_size(others, limit)
    return 0


def _largest(values: list[Any]) -> int:
    """Return the largest absolute value of the integers in ``values``; 0 without integers."""
    return max(map(abs, _integers(values)), default=0)


def replaced_size(text: str | bytes, values: list[Any]) -> int:
    """Return an upper bound of the number of characters that replacing ``values[0]`` with ``values[1]`` adds."""
    if len(values) < 2 or not all(isinstance(value, type(text)) for value in values[:2]):
        return 0
    return text.count(values[0]) * len(values[1])


def _integers(values: Any) -> list[int]:
    rest, found = [values], []
    for item in rest:  # grows
        if isinstance(item, int):
            found.append(item)
        elif isinstance(item, list | tuple):
            rest += item[:100]
        elif isinstance(item, Mapping):
            rest += list(item.values())[:100]
    return found
