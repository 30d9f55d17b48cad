"""Every number in every body, at the limits of the types that carry it to the engine, causes no 500 and leaves no
request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import inspect

from ebbtide.server.app import routes
from ebbtide.server.metrics.liveness import Liveness

from .conftest import World

pytestmark = pytest.mark.anyio
EDGES = (2**31, -(2**31), 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, 10**400)
RAW = ("1e400", "NaN", "-Infinity")
ANY_KEY = "1"  # of a dict
DEEPEST = 8  # keys
WIDEST = 2**63  # integers from here on do not fit in a message


@dataclass(frozen=True)
class Number:
    """A number in a body: its keys from the outside in, and its type."""

    keys: tuple[str | int, ...]
    kind: inspect.IntType | inspect.FloatType

    @property
    def param(self) -> str:
        """The name of the number in errors."""
        return ".".join(key for key in self.keys if isinstance(key, str) and key != ANY_KEY)


def parts(kind: inspect.Type) -> list[tuple[tuple[str | int, ...], inspect.Type]]:
    """The types inside a type, with the keys that lead to them."""
    match kind:
        case inspect.Metadata(type=inner):
            return [((), inner)]
        case inspect.UnionType(types=types):
            return [((), one) for one in types]
        case inspect.StructType(fields=fields):
            return [((field.encode_name,), field.type) for field in fields]
        case inspect.ListType(item_type=inner):
            return [((0,), inner)]
        case inspect.DictType(value_type=inner):
            return [((ANY_KEY,), inner)]
    return []


def numbers(kind: inspect.Type, keys: tuple[str | int, ...] = ()) -> Iterator[Number]:
    """The numbers in a type, including those of nested structs and lists; a recursive type is entered only once."""
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        yield Number(keys, kind)
    if len(keys) < DEEPEST:
        for more, inner in parts(kind):
            yield from numbers(inner, keys + more)


def least(kind: inspect.Type) -> Any:
    """A small valid value of a type."""
    match kind:
        case inspect.Metadata() | inspect.UnionType():
            return least(parts(kind)[0][1])
        case inspect.StructType():
            return {field.encode_name: least(field.type) for field in kind.fields if field.required}
        case inspect.ListType(item_type=inner):
            return [least(inner)]
        case inspect.LiteralType(values=values):
            return "user" if "user" in values else values[0]
    return 1 if isinstance(kind, inspect.IntType) else "hi"


def struct_in(kind: inspect.Type) -> inspect.StructType | None:
    """The struct that a field holds, also in a list."""
    if isinstance(kind, inspect.StructType):
        return kind
    return next(filter(None, (struct_in(inner) for _, inner in parts(kind))), None)


def body_with(kind: inspect.StructType, keys: tuple[str | int, ...], value: Any, complete: dict[str, Any]) -> Any:
    """A body that is valid except for ``value`` at ``keys``."""
    [name, *rest] = keys
    field = next(field for field in kind.fields if field.encode_name == name)
    body = least(kind) | complete
    inner = struct_in(field.type)
    if not rest:
        body[name] = value
    elif inner is None:
        body[name] = {rest[0]: value} if isinstance(rest[0], str) else [value]
    elif isinstance(rest[0], int):
        body[name] = [body_with(inner, tuple(rest[1:]), value, {})] if rest[1:] else [value]
    else:
        body[name] = body_with(inner, tuple(rest), value, {})
    return body


COMPLETE: dict[str, dict[str, Any]] = {"/generate": {"text": "hi"}, "/tokenize": {"prompt": "hi"}}


def every_number(world: World) -> Iterator[tuple[str, inspect.StructType, Number]]:
    for route in routes(world.state):
        if route.body is not None:
            kind = inspect.type_info(route.body)
            assert isinstance(kind, inspect.StructType)
            for number in numbers(kind):
                yield route.path, kind, number


async def test_every_integer_is_bounded_by_what_a_message_carries(world: World) -> None:
    found = 0
    for path, _, number in every_number(world):
        if isinstance(number.kind, inspect.IntType):
            found += 1
            least_value = number.kind.ge if number.kind.ge is not None else number.kind.gt
            most = number.kind.le if number.kind.le is not None else number.kind.lt
            assert least_value is not None, f"{number.param} of {path} has no lower bound"
            assert most is not None, f"{number.param} of {path} has no upper bound"
            assert -WIDEST <= least_value <= most < WIDEST
    assert found > 50


@pytest.mark.slow
async def test_a_number_at_any_edge_is_answered_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Liveness, "require_ready", lambda _: None)  # there are no heartbeats here
    asked = 0
    for path, kind, number in every_number(world):
        if path in ("/open_session", "/v1/sessions"):
            continue  # their numbers reach no request; the next test sends them
        for value in (*EDGES, *RAW):
            body = body_with(kind, number.keys, "?" if isinstance(value, str) else value, COMPLETE.get(path, {}))
            text = json.dumps(body)
            if isinstance(value, str):
                place = text.rindex('"?"')
                text = text[:place] + value + text[place + 3 :]
            reply = await world.client.post(path, content=text, headers={"content-type": "application/json"})
            asked += 1
            note = f"{path} {number.keys} {value}: {reply.status_code} {reply.text[:200]}"
            assert reply.status_code in (200, 400, 404), note
            too_wide = isinstance(value, str) or (
                not -WIDEST <= value < WIDEST and (isinstance(number.kind, inspect.IntType) or value == 10**400)
            )
            assert not too_wide or reply.status_code == 400, note
            if reply.status_code == 400 and too_wide:
                assert number.param in re.sub(r"\[\d+\]", "", reply.text), note
            assert world.state.manager.num_open == world.state.manager.num_choices == 0, note
            assert world.state.manager.num_open_of("") == 0, note
    assert asked > 500


@pytest.mark.parametrize("path", ["/open_session", "/v1/sessions"])
@pytest.mark.parametrize("name", ["capacity_of_str_len", "timeout"])
@pytest.mark.parametrize("raw", ["1e400", "NaN", str(10**400), str(2**64)])
async def test_the_numbers_of_a_session_are_checked_too(path: str, name: str, raw: str, world: World) -> None:
    if name == "timeout" and raw == str(2**64):
        raw = "-1"  # a float; the scheduler bounds it
    if name == "capacity_of_str_len" and path == "/v1/sessions":
        return
    fields = {"capacity_of_str_len": "1", name: raw} if path == "/open_session" else {name: raw}
    text = "{" + ", ".join(f'"{key}": {value}' for key, value in fields.items()) + "}"
    reply = await world.client.post(path, content=text, headers={"content-type": "application/json"})
    assert reply.status_code == 400, reply.text
    assert name in reply.json()["error"]["message"]
    assert world.state.control.num_open == 0
