"""An incremental JSON validator, which finds the end of a value and errors in it. It reads each character once."""

from __future__ import annotations

import re

MAX_DEPTH = 64
PLAIN = re.compile(r'[^"\\\x00-\x1f]+')  # a run of unescaped string characters
SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
SCALAR_CHARACTERS = re.compile(r"[-+.0-9A-Za-z]+")
ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
BEGINS_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

# The states of the validator, named after the expected input. VALUE_OR_END and KEY_OR_END occur only directly after an
# opening bracket.
VALUE, VALUE_OR_END, KEY, KEY_OR_END, COLON, AFTER, STRING, SCALAR_GOES_ON = range(8)


class JsonText:
    """Validates one JSON value strictly, except that raw line breaks and tabs in strings are accepted and escaped.

    Attributes:
        done: True if the value is complete. A number at the top level is complete only when the next character arrives.
        bad: True if the text is not valid JSON.
        loose: True to accept invalid JSON; the value then ends where its brackets close.
        accepted: parts of the text accepted since the last ``take_accepted``.
    """

    def __init__(self) -> None:
        self.done = False
        self.bad = False
        self.loose = False
        self.accepted: list[str] = []
        self._open: list[str] = []
        self._next = VALUE
        self._is_key = False
        self._escape = ""
        self._scalar = ""

    def consume(self, text: str, at: int, limit: int) -> int:
        """Read ``text[at:limit]``, at most to the end of the value. Return the index after the last character read."""
        while at < limit and not self.done and not self.bad:
            if self._next == STRING:
                at = self._string(text, at, limit)
            elif self._next == SCALAR_GOES_ON:
                at = self._scalar_on(text, at, limit)
            elif text[at] in " \t\r\n":
                at = self._accept(text, at, 1)
            elif self.loose:
                at = self._bracket_or_string(text, at)
            else:
                at = self._structure(text, at)
        return at

    def take_accepted(self) -> str:
        """Return the text accepted since the previous call of this method."""
        text = "".join(self.accepted)
        self.accepted.clear()
        return text

    def _accept(self, text: str, at: int, count: int) -> int:
        self.accepted.append(text[at : at + count])
        return at + count

    def _structure(self, text: str, at: int) -> int:
        character = text[at]
        if character == '"' and self._next in (VALUE, VALUE_OR_END, KEY, KEY_OR_END):
            self._is_key = self._next in (KEY, KEY_OR_END)
            self._next = STRING
        elif character in "[{" and self._next in (VALUE, VALUE_OR_END) and len(self._open) < MAX_DEPTH:
            self._open.append(character)
            self._next = VALUE_OR_END if character == "[" else KEY_OR_END
        elif character in "]}" and self._closes(character):
            self._close()
        elif character == ":" and self._next == COLON:
            self._next = VALUE
        elif character == "," and self._next == AFTER:
            self._next = VALUE if self._open[-1] == "[" else KEY
        elif character in "-0123456789tfn" and self._next in (VALUE, VALUE_OR_END):
            self._scalar = ""
            self._next = SCALAR_GOES_ON
            return at
        else:
            return self._fail(at)
        return self._accept(text, at, 1)

    def _closes(self, character: str) -> bool:
        empty = VALUE_OR_END if character == "]" else KEY_OR_END
        return bool(self._open) and self._open[-1] + character in ("[]", "{}") and self._next in (AFTER, empty)

    def _close(self) -> None:
        self._open.pop()
        self._value_ends()

    def _value_ends(self) -> None:
        self._next = AFTER
        self.done = not self._open

    def _bracket_or_string(self, text: str, at: int) -> int:
        """Read one character in loose mode, in which only brackets and strings matter."""
        character = text[at]
        if character == '"':
            self._is_key = False
            self._next = STRING
        elif character in "[{":
            self._open.append(character)
        elif character in "]}":
            self._open.pop()
            self.done = not self._open
        return self._accept(text, at, 1)

    def _string(self, text: str, at: int, limit: int) -> int:
        character = text[at]
        if self._escape:
            return self._escaped(text, at)
        if character == '"':
            if self._is_key:
                self._next = COLON
            else:
                self._value_ends()
            return self._accept(text, at, 1)
        if character == "\\":
            self._escape = character
            return self._accept(text, at, 1)
        run = PLAIN.match(text, at, limit)
        if run is not None:
            return self._accept(text, at, run.end() - at)
        if character not in CONTROL and not self.loose:
            return self._fail(at)
        self.accepted.append(CONTROL.get(character, character))
        return at + 1

    def _escaped(self, text: str, at: int) -> int:
        escape = self._escape + text[at]
        if ESCAPE.fullmatch(escape):
            self._escape = ""
        elif BEGINS_ESCAPE.fullmatch(escape):
            self._escape = escape
        elif self.loose:
            self._escape = ""
        else:
            return self._fail(at)
        return self._accept(text, at, 1)

    def _scalar_on(self, text: str, at: int, limit: int) -> int:
        run = SCALAR_CHARACTERS.match(text, at, limit)
        if run is not None:
            self._scalar += run.group()
            return self._accept(text, at, run.end() - at)
        if SCALAR.fullmatch(self._scalar) is None and not self.loose:
            return self._fail(at)
        self._value_ends()
        return at

    def _fail(self, at: int) -> int:
        """Record an error. The character is not consumed, because the caller may continue in loose mode."""
        self.bad = True
        return at

    def ignore_errors(self) -> None:
        """Continue after an error in loose mode."""
        self.loose = True
        self.bad = False
        if self._next != STRING:
            self._next = AFTER
