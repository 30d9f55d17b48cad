"""JSON schemas as clients send them: is one well formed by Draft 2020-12? Knows no grammar and no request.

What a keyword means is the grammar compiler's business, which refuses the keywords that it cannot keep. This here is
about values that it would pass over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from math import lcm
from typing import Any

from ebbtide.errors import Rejected

from .schema_references import num_levels, target

MAX_DEPTH = 64
MAX_SUBSCHEMAS = 10_000  # a circle of so many fits four times into the stack that compiling has
# States that an automaton for "multiple of" may have. The compiler builds it at once and without a bound of its own:
# 50,000 take half a second, and 12345.678 would take minutes and the machine's memory.
MAX_MULTIPLE = 20_000
OPTIONS = "x-guidance"  # would switch the compiler's checks off


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return _number(value) and value >= 0 and value == int(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value) and len(set(value)) == len(value)


def _name_lists(value: Any) -> bool:
    return isinstance(value, dict) and all(_names(entry) for entry in value.values())


def _types(value: Any) -> bool:
    return isinstance(value, str) or (bool(value) and _names(value))


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_schema(entry) for entry in value)


def _named_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(_schema(entry) for entry in value.values())


Check = Callable[[Any], bool]


def _kinds(check: Check, names: str) -> dict[str, Check]:
    return dict.fromkeys(names.split(), check)


ONE = _kinds(
    _schema,
    "items additionalProperties not if then else contains propertyNames unevaluatedItems unevaluatedProperties",
)
SEVERAL = _kinds(_schemas, "allOf anyOf oneOf prefixItems")
NAMED = _kinds(_named_schemas, "properties patternProperties $defs definitions dependentSchemas")
PLAIN: dict[str, Check] = {
    **_kinds(_types, "type"),
    **_kinds(_list, "enum examples"),
    **_kinds(_names, "required"),
    **_kinds(_name_lists, "dependentRequired"),
    **_kinds(_positive, "multipleOf"),
    **_kinds(_number, "minimum maximum exclusiveMinimum exclusiveMaximum"),
    **_kinds(_count, "minLength maxLength minItems maxItems minContains maxContains minProperties maxProperties"),
    **_kinds(_text, "pattern format title description $id $schema $ref $anchor $dynamicRef $dynamicAnchor $comment"),
    **_kinds(_text, "contentEncoding contentMediaType"),
    **_kinds(_boolean, "uniqueItems deprecated readOnly writeOnly"),
}
KEYWORDS = ONE | SEVERAL | NAMED | PLAIN


def check_schema(schema: Any, param: str) -> None:
    """Raises Rejected, naming ``param`` and the keyword, unless ``schema`` is one by Draft 2020-12."""
    if not _schema(schema):
        raise Rejected(f"'{param}' must be a JSON schema: an object, true or false.", param=param)
    _check_depth(schema, param)
    multiple = 1
    for count, part in enumerate(_subschemas(schema), 1):
        if count > MAX_SUBSCHEMAS:
            raise Rejected(f"'{param}' consists of more than {MAX_SUBSCHEMAS} schemas.", param=param)
        _check_keywords(part, param)
        multiple = lcm(multiple, _odd_part(part.get("multipleOf", 1)))  # alternatives may be merged: automata, too
    if multiple > MAX_MULTIPLE:
        raise Rejected(f"'{param}' has a 'multipleOf' of too many digits.", param=param)
    if isinstance(schema, dict) and num_levels(schema, lambda part: _inside(part, schema)) > MAX_DEPTH:
        raise Rejected(f"'{param}' is nested deeper than {MAX_DEPTH} levels through its references.", param=param)


def _check_keywords(schema: dict[str, Any], param: str) -> None:
    for keyword, value in schema.items():
        if keyword == OPTIONS:
            raise Rejected(f"'{OPTIONS}' in '{param}' is not supported.", param=param)
        if keyword in KEYWORDS and not KEYWORDS[keyword](value):
            raise Rejected(
                f"'{param}' is no valid JSON schema: '{keyword}' has a value that it cannot have.", param=param
            )


def _odd_part(value: float) -> int:
    """The digits of a number without the zeros around them: a multiple of 1,200 is one of 12 with two zeros."""
    digits = "".join(map(str, Decimal(repr(value)).as_tuple().digits))
    return int(digits.strip("0"))


def _check_depth(schema: Any, param: str) -> None:
    level = [schema]
    for _ in range(MAX_DEPTH):
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise Rejected(f"'{param}' is nested deeper than {MAX_DEPTH} levels.", param=param)


def _children(value: Any) -> list[Any]:
    """The objects and lists right inside ``value``."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in inside if isinstance(child, dict | list)]


def _subschemas(root: Any) -> Iterator[dict[str, Any]]:
    """A schema, those inside it and those that it refers to, each once. One must be well formed to be gone on from."""
    waiting, seen = [root], {id(root)}
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield schema
        for inner in _inside(schema, root):
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)


def _inside(schema: dict[str, Any], root: Any) -> list[dict[str, Any]]:
    """The schemas right inside a well-formed one, and the one that it refers to."""
    found = [schema[keyword] for keyword in ONE if keyword in schema]
    for keyword in SEVERAL:
        found += schema.get(keyword, ())
    for keyword in NAMED:
        found += schema.get(keyword, {}).values()
    if "$ref" in schema:
        found.append(target(schema["$ref"], root))
    return [inner for inner in found if isinstance(inner, dict)]
