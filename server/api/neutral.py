"""Defines which values of request fields are neutral, that is, have no effect.

Some clients send such values for every field that they know; each of them is treated like an absent field.

These values are null, false, an empty string, list or object, and the values in ``NEUTRAL``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect
from starlette.requests import Request

from ..http.strict_json import convert, read_json

NO_LIMIT = (-1,)
# field → neutral values
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "max_tokens": NO_LIMIT,
    "max_completion_tokens": NO_LIMIT,
    "max_output_tokens": NO_LIMIT,
    "max_new_tokens": NO_LIMIT,
    "max_tool_calls": NO_LIMIT,
    "truncate_prompt_tokens": NO_LIMIT,
    "thinking_token_budget": NO_LIMIT,  # not 0, which turns reasoning off
    "n": (1,),
    "best_of": (1,),
    "min_tokens": (0,),
    "min_new_tokens": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "top_logprobs": (0,),
    "function_call": ("auto", "none"),
    "guided_decoding_backend": ("auto",),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
}
# In these fields an empty value has a meaning: an empty prompt, a schema that allows everything, an empty choice.
EMPTY_IS_A_VALUE = frozenset({"prompt", "text", "input_ids", "messages", "schema", "json", "choice"})
SCHEMAS = frozenset({"schema", "json"})  # the only empty value that has a meaning in these fields is the empty object
# field in which an empty value has a meaning → fields of the same object that can be given instead. The empty value is
# neutral if one of them has a value other than null.
ALTERNATIVES: dict[str, tuple[str, ...]] = {
    "text": ("input_ids",),
    "input_ids": ("text",),
    "prompt": ("messages",),
    "messages": ("prompt",),
    "choice": ("json", "regex", "grammar", "json_object", "structural_tag"),
}
EMPTY_ASKS = frozenset({"web_search_options"})  # fields of other servers in which an empty object selects the defaults
EMPTY: dict[type[inspect.Type], Any] = {
    inspect.StrType: "",
    inspect.LiteralType: "",
    inspect.ListType: [],
    inspect.DictType: {},
    inspect.StructType: {},
}
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class _Field:
    """Describes the values that an optional field of a body accepts.

    Attributes:
        empties: the empty values that the field accepts
        takes_bool: True if false is a meaningful value
        inner: struct type of the object, or of the objects in the list; None if the field has no struct type
    """

    empties: tuple[Any, ...]
    takes_bool: bool
    inner: type | None


def asks_for_nothing(name: str, value: Any) -> bool:
    """Return True if ``value`` has no effect in the unsupported field ``name``."""
    if value is None or value is False:
        return True
    return _is_neutral(name, value) or (name not in EMPTY_ASKS and _is_empty(value))


def body_of(raw: dict[str, Any], kind: type[B]) -> B:
    """Convert a request's JSON to ``kind``, without the optional fields whose value is neutral.

    Raises Rejected if the JSON does not match ``kind``.
    """
    return convert(_without_neutral(raw, kind), kind)


async def read_as(request: Request, kind: type[B], *, optional: bool = False) -> B:
    """Return the request body as ``kind``. Raises Rejected in the same cases as ``read_json`` and ``body_of``."""
    return await read_json(request, lambda raw: body_of(raw, kind), optional=optional)


def _without_neutral(raw: dict[str, Any], kind: type) -> dict[str, Any]:
    fields = _optional_fields(kind)
    kept: dict[str, Any] = {}
    for name, value in raw.items():
        known = fields.get(name)
        if known is not None and known.inner is not None and name not in EMPTY_IS_A_VALUE:
            value = _inner(value, known.inner)
        if known is None or not (_asks_nothing_of(known, name, value) or _is_replaced(raw, name)):
            kept[name] = value
    return kept


def _inner(value: Any, kind: type) -> Any:
    if isinstance(value, dict):
        return _without_neutral(value, kind)
    if isinstance(value, list):
        return [_without_neutral(entry, kind) if isinstance(entry, dict) else entry for entry in value]
    return value


def _asks_nothing_of(known: _Field, name: str, value: Any) -> bool:
    if value is None or (value is False and not known.takes_bool):
        return True
    has_meaning = name in EMPTY_IS_A_VALUE and (name not in SCHEMAS or value == {})
    if not has_meaning and _is_empty(value) and any(type(value) is type(one) for one in known.empties):
        return True
    return _is_neutral(name, value)


def _is_replaced(raw: dict[str, Any], name: str) -> bool:
    """Return True if the field is an empty string or list and one of its alternatives has a value."""
    is_empty = isinstance(raw[name], (str, list)) and _is_empty(raw[name])
    return is_empty and any(raw.get(other) is not None for other in ALTERNATIVES.get(name, ()))


def _is_empty(value: Any) -> bool:
    """Return True for an empty string, object or list, and for a list of empty strings and nulls."""
    return value in ("", {}) or (isinstance(value, list) and all(entry in ("", None) for entry in value))


def _is_neutral(name: str, value: Any) -> bool:
    return not isinstance(value, bool) and value in NEUTRAL.get(name, ())


@cache
def _optional_fields(kind: type) -> dict[str, _Field]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: _field(list(_members(field.type))) for field in info.fields if not field.required}


def _field(members: list[inspect.Type]) -> _Field:
    if any(isinstance(member, inspect.AnyType) for member in members):
        return _Field(empties=("", [], {}), takes_bool=False, inner=None)
    return _Field(
        empties=tuple(EMPTY[type(member)] for member in members if type(member) in EMPTY),
        takes_bool=any(isinstance(member, inspect.BoolType) for member in members),
        inner=next((struct for member in members if (struct := _struct_of(member)) is not None), None),
    )


def _members(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the alternatives of a type, without its constraints."""
    if isinstance(kind, inspect.Metadata):
        yield from _members(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for member in kind.types:
            yield from _members(member)
    else:
        yield kind


def _struct_of(kind: inspect.Type) -> type[msgspec.Struct] | None:
    if isinstance(kind, inspect.ListType):
        return next((struct for member in _members(kind.item_type) if (struct := _struct_of(member))), None)
    return kind.cls if isinstance(kind, inspect.StructType) else None
