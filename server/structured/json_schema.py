"""Checks that a client's JSON schema is well formed according to Draft 2020-12.

The grammar compiler interprets the keywords and rejects those that it cannot enforce, but it ignores malformed values.
The module does not depend on grammars or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from math import lcm
from typing import Any

from ebbtide.errors import Rejected

from .schema_references import num_levels, target

MAX_DEPTH = 64
MAX_SUBSCHEMAS = 10_000  # a cycle of this many references uses a quarter of the compile thread's stack
# Maximum number of states of the automaton for "multipleOf". The compiler has no limit: 50,000 states take half a
# second to build; the value 12345.678 would take minutes and all memory.
MAX_MULTIPLE = 20_000
OPTIONS = "x-guidance"  # a key that would disable the compiler's checks


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
    """Raise Rejected, naming ``param`` and the keyword, unless ``schema`` is well formed according to Draft 2020-12.

    Also raises Rejected if the schema is too large or nested too deeply.
    """
    if not _schema(schema):
        raise Rejected(f"'{param}' must be a JSON schema: an object, true or false.", param=param)
    _check_depth(schema, param)
    multiple = 1
    for count, part in enumerate(_subschemas(schema), 1):
        if count > MAX_SUBSCHEMAS:
            raise Rejected(f"'{param}' contains more than {MAX_SUBSCHEMAS} subschemas, including itself.", param=param)
        _check_keywords(part, param)
        # Limit the least common multiple: the compiler may merge the automata of alternatives, whose sizes then
        # multiply.
        multiple = lcm(multiple, _odd_part(part.get("multipleOf", 1)))
    if multiple > MAX_MULTIPLE:
        raise Rejected(f"The values of 'multipleOf' in '{param}' have too many digits.", param=param)
    if isinstance(schema, dict) and num_levels(schema, lambda part: _inside(part, schema)) > MAX_DEPTH:
        raise Rejected(f"'{param}' is nested deeper than {MAX_DEPTH} levels, including its references.", param=param)


def _check_keywords(schema: dict[str, Any], param: str) -> None:
    for keyword, value in schema.items():
        if keyword == OPTIONS:
            raise Rejected(f"'{OPTIONS}' in '{param}' is not supported.", param=param)
        if keyword in KEYWORDS and not KEYWORDS[keyword](value):
            raise Rejected(f"'{param}' is not a valid JSON schema: '{keyword}' has an invalid value.", param=param)


def _odd_part(value: float) -> int:
    """Return the digits of a number as an integer, without trailing zeros, which add no states to the automaton."""
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
    """Return the objects and lists directly inside ``value``."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in inside if isinstance(child, dict | list)]


def _subschemas(root: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema, its subschemas and the schemas that they reference, each once.

    The caller must check each schema before it requests the next one.
    """
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
    """Return the direct subschemas of a well-formed schema, and the schema to which its ``$ref`` refers."""
    found = [schema[keyword] for keyword in ONE if keyword in schema]
    for keyword in SEVERAL:
        found += schema.get(keyword, ())
    for keyword in NAMED:
        found += schema.get(keyword, {}).values()
    if "$ref" in schema:
        found.append(target(schema["$ref"], root))
    return [inner for inner in found if isinstance(inner, dict)]
