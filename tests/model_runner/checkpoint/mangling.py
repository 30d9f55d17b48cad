"""Random damage to files: bytes, and values of JSON documents. Each mutation follows from its seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Mangle = Callable[[bytes, Random], bytes]

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3.0,
    1.5,
    -0.5,
    2**31,
    2**63,
    2**70,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x",
    "12",
    "\ud800",
    "a\nb",
    "auto",
    "float8_e4m3fn",
    [],
    [1],
    ["x", None],
    {},
    {"type": "yarn"},
    {"rope_type": "dynamic", "factor": 2},
    {"a": {"b": []}},
]


def mangled_bytes(data: bytes, rng: Random) -> bytes:
    """The bytes with one to three places cut, overwritten, repeated or extended."""
    for _ in range(rng.randint(1, 3)):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 8, 100))
        end = at + length
        noise = rng.randbytes(length)
        data = rng.choice(
            (
                data[:at],
                data[:at] + data[end:],
                data[:at] + noise + data[end:],
                data[:at] + noise + data[at:],
                data[:end] + data[at:],
            )
        )
    return data


def mangled_json(data: bytes, rng: Random) -> bytes:
    """The document with one to three values replaced, removed, renamed or wrapped; or with mangled bytes."""
    if rng.random() < 0.25:
        return mangled_bytes(data, rng)
    document = json.loads(data)
    for _ in range(rng.randint(1, 3)):
        document = _changed(document, rng)
    return json.dumps(document).encode()


def mangled_gguf(data: bytes, rng: Random) -> bytes:
    """The GGUF file with a damaged header: mangled bytes, or one to three bytes of the same length changed, anywhere or
    among the first keys or the last tensors.
    """
    end = data.rindex(b".weight") + 39  # behind the name: dimensions, type, offset
    start, stop = rng.choice(((0, end), (0, 1500), (end - 1500, end)))
    part = bytearray(data[start:stop])
    if rng.random() < 0.3:
        return data[:start] + mangled_bytes(bytes(part), rng) + data[stop:]
    for _ in range(rng.randint(1, 3)):
        part[rng.randrange(len(part))] = rng.choice(
            (0, 1, 2, 3, 9, 10, 27, 48, 66, 97, 127, 128, 255, rng.randrange(256))
        )
    return data[:start] + bytes(part) + data[stop:]


def _changed(value: Any, rng: Random) -> Any:
    """Return a copy of the value in which one part, or the value itself, is changed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        return _changed_object(value, rng.choice(list(value)), rng)
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        changed = [] if rng.random() < 0.2 else [_changed(value[at], rng)]
        return [*value[:at], *changed, *value[at + 1 :]]
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.4:
        return rng.choice((float(value), -value, value + 1, value * 2, str(value), [value]))
    return rng.choice(VALUES)


def _changed_object(value: dict[str, Any], key: str, rng: Random) -> dict[str, Any]:
    action = rng.random()
    rest = {name: one for name, one in value.items() if name != key}
    if action < 0.1:
        return rest
    if action < 0.15:
        return rest | {rng.choice((key.upper(), key + "_", "", "model_type")): value[key]}
    return value | {key: _changed(value[key], rng)}
