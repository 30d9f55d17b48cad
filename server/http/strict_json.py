"""Strict JSON parsing of request bodies.

Some input that Python's parser accepts is an error here, for example NaN and duplicate keys.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request

from ebbtide.errors import Rejected

from .off_loop import off_loop

MAX_DEPTH = 128
MAX_COMMAS = 500_000  # more elements than any context has tokens; parsing that many takes less than a second
MAX_KEYS = 20_000  # maximum number of keys in one object, because the parser holds the GIL until the object ends
MAX_DIGITS = 640  # maximum number of digits of an integer: the time to convert it grows quadratically
SHORTEST_KEYS = 4 * MAX_KEYS  # minimum number of characters of MAX_KEYS keys with their values
KEY_END = re.compile(r'"\s*:')
UTF_8_NAMES = ("utf-8", "utf8", "us-ascii", "ascii", "")
CHARSET = re.compile(r"(?:^|;)\s*charset\s*=\s*(\"[^\"]*\"|[^;]*?)\s*(?=;|$)", re.IGNORECASE)
MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`")  # msgspec's message
B = TypeVar("B")
T = TypeVar("T")


async def read_json(request: Request, read: Callable[[dict[str, Any]], T], *, optional: bool = False) -> T:
    """Return the result of ``read`` for the JSON object in the request body.

    If the body is large, parsing and ``read`` run in a thread.

    optional: True to treat an absent body as an empty object.
    Raises Rejected with status 415 if the content type or charset is not supported or the body is compressed, 413 if
    the body has too many elements, and 400 if it is invalid.
    """
    body = await request.body()
    if optional and not body:
        return read({})
    _check_content_type(request.headers)
    return await off_loop(len(body), lambda: read(_parse_object(body)))


def _parse_object(body: bytes) -> dict[str, Any]:
    if body.count(b",") > MAX_COMMAS:  # building the objects holds the GIL, even in a worker thread
        raise Rejected(f"The body has more than {MAX_COMMAS} elements.", status=413, code="request_too_large")
    value = parse(body)
    if not isinstance(value, dict):
        raise Rejected("The request body must be a JSON object.")
    return value


def parse(body: bytes) -> Any:
    """Parse a JSON text.

    Raises Rejected if it is not valid JSON, or if it contains NaN, Infinity, a number outside the range of a float, an
    integer with more than ``MAX_DIGITS`` characters, duplicate keys, unpaired surrogates, invalid UTF-8, nesting deeper
    than ``MAX_DEPTH``, or an object with more than ``MAX_KEYS`` keys.
    """
    try:
        text = body.decode()
        _check_num_keys(text)
        value = json.loads(text, object_pairs_hook=_unique, parse_int=_int, parse_constant=float)
    except UnicodeDecodeError as error:
        raise Rejected(f"The request body is not valid UTF-8 at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise Rejected(f"The request body is not valid JSON: {error.msg} at character {error.pos}.") from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise Rejected("The request body is not valid JSON: a number is too long.") from error
    try:
        _check(value)
    except _NotFinite as error:
        name = _name_of_infinite(value)[:200]
        where = f"the number in '{name}'" if name else "a number"
        raise Rejected(
            f"The request body is not valid JSON: {where} is NaN or out of range.", param=name or None
        ) from error
    return value


def parse_arguments(text: str) -> dict[str, Any] | None:
    """Parse the arguments of a tool call. Returns None if ``text`` is not a valid JSON object.

    It is not valid if it is truncated or nested too deeply, or if it contains NaN, a number outside the range of a
    float, an unpaired surrogate or too many keys: such values cannot be encoded as JSON again.
    """
    try:
        _check_num_keys(text)
        value = json.loads(text, parse_int=_int, parse_constant=_reject_constant)
        _check(value)
    except (ValueError, RecursionError, Rejected):
        return None
    return value if isinstance(value, dict) else None


def convert(value: dict[str, Any], kind: type[B], where: str = "") -> B:
    """Convert the object to ``kind``. Raises Rejected, with the path of the field in ``param``, if a field is invalid.

    where: path of the object in the request body; "" for the body itself.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        field = path.rstrip("`").removeprefix("$").removeprefix(".").replace("[...]", "")
        param = ".".join(filter(None, [where, field])) or None
        missing = MISSING.match(message)
        if missing is not None and not field:
            param = ".".join(filter(None, [where, missing["name"]]))
            raise Rejected(f"'{param}' is missing.", param=param) from error
        where = f"Invalid value for '{param}': " if param else "Invalid request: "
        raise Rejected(where + message.replace("`", ""), param=param) from error


def _int(digits: str) -> int:
    """Convert an integer. Raises ValueError if it is too long. Other threads can run between two calls."""
    if len(digits) > MAX_DIGITS:
        raise ValueError("a number is too long")
    return int(digits)


def _check_content_type(headers: Headers) -> None:
    """Raise Rejected unless the headers declare the body as uncompressed JSON in UTF-8."""
    kind, _, parameters = headers.get("content-type", "application/json").partition(";")
    kind = kind.strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Rejected(f"The content type must be application/json, not {kind[:100]!r}.", status=415)
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise Rejected(f"The body must not be compressed: Content-Encoding is {coding[:100]!r}.", status=415)
    for charset in CHARSET.findall(parameters):
        if charset.strip("'\"").lower() not in UTF_8_NAMES:
            raise Rejected(f"The body must be UTF-8: the content type has the charset {charset[:100]!r}.", status=415)


class _NotFinite(ValueError):
    """Raised if a number is NaN or out of range."""


def _check(root: Any) -> None:
    """Check depth, numbers and strings, level by level: recursion could overflow the stack.

    Raises _NotFinite if a number is NaN or infinite, and Rejected if the depth or a string is invalid.
    """
    level = [root]
    for _ in range(MAX_DEPTH + 1):
        for value in level:
            _check_leaf(value)
        level = [child for value in level if isinstance(value, (dict, list)) for child in _children(value)]
        if not level:
            return
    raise _too_deep()


def _children(value: dict[str, Any] | list[Any]) -> list[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else value


def _check_leaf(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _NotFinite
    if isinstance(value, str) and not value.isascii() and re.search("[\ud800-\udfff]", value):
        raise Rejected("The request body has an unpaired surrogate, which is not valid Unicode.")


def _check_num_keys(text: str) -> None:
    """Raise Rejected if the parser would read more than ``MAX_KEYS`` keys in a row without an object's end.

    Runs before the parser. It never counts too many keys, because quotes inside strings are escaped. It misses keys if
    a string between them contains a brace; ``_unique`` counts these keys.
    """
    start = 0
    while len(text) - start > SHORTEST_KEYS:
        last = text.rfind("}", start, start + SHORTEST_KEYS)
        if last >= 0:  # the text before this brace is too short to contain too many keys
            start = last + 1
            continue
        end = text.find("}", start)
        part = text[start : end if end >= 0 else len(text)]
        keys = (match for match in KEY_END.finditer(part) if part[match.start() - 1] != "\\")
        if next(islice(keys, MAX_KEYS, None), None):
            raise _too_many_keys()
        start += len(part) + 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise _too_many_keys()
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise Rejected(f"The request body has the key {twice[:100]!r} twice in one object.")
    return result


def _name_of_infinite(root: Any) -> str:
    """Return the path of the first number that is NaN or infinite, such as "messages.content", without list indexes."""
    level = [("", root)]
    while level:
        for name, value in level:
            if isinstance(value, float) and not math.isfinite(value):
                return name
        children = [(name, value) for name, value in level if isinstance(value, list)]
        nested = [(name, child) for name, value in children for child in value]
        for name, value in level:
            if isinstance(value, dict):
                nested += [(f"{name}.{key}" if name else key, child) for key, child in value.items()]
        level = nested
    return ""


def _reject_constant(name: str) -> Any:
    raise Rejected(f"The request body is not valid JSON: {name} is not a JSON number.")


def _too_deep() -> Rejected:
    return Rejected(f"The request body is nested deeper than {MAX_DEPTH} levels.")


def _too_many_keys() -> Rejected:
    return Rejected(f"The request body has more than {MAX_KEYS} keys in one object or in nested objects.")
