"""Invalid schemas, including those that the compiler would accept."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from ebbtide.errors import Rejected
from ebbtide.server.structured.json_schema import KEYWORDS, MAX_DEPTH, MAX_SUBSCHEMAS, check_schema

VALUES: list[Any] = [None, True, 0, 1, -1, 1.5, 2.0, "x", "", "string", [], ["a"], ["a", "a"], [1], [{}], [[]], {}]
VALUES += [{"a": {}}, {"a": True}, {"a": 1}, {"a": []}, {"a": ["b"]}, {"a": "b"}, [True, {}], ["string", "null"]]


def by_the_meta_schema(schema: Any) -> bool:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return False
    return True


@pytest.mark.parametrize("keyword", sorted(KEYWORDS))
def test_schemas_that_the_meta_schema_refuses_are_refused(keyword: str) -> None:
    """Conversely, only the compiler checks a few formats of strings, such as URIs."""
    for value in VALUES:
        for schema in ({keyword: value}, {"properties": {"p": {"allOf": [{"items": {keyword: value}}]}}}):
            if by_the_meta_schema(schema):
                check_schema(schema, "s")
            elif not isinstance(value, str) and value not in (["a"], ["a", "a"]):
                with pytest.raises(Rejected, match=f"'{keyword.replace('$', '[$]')}' has an invalid value"):
                    check_schema(schema, "s")


@pytest.mark.parametrize("value", [None, 1, "x", []])
def test_only_an_object_or_a_boolean_is_a_schema(value: Any) -> None:
    with pytest.raises(Rejected, match="must be a JSON schema"):
        check_schema(value, "s")


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


def test_nesting_has_a_limit() -> None:
    check_schema(nested(MAX_DEPTH), "s")
    with pytest.raises(Rejected, match="nested deeper than 64"):
        check_schema(nested(MAX_DEPTH + 1), "s")
    with pytest.raises(Rejected, match="nested deeper than 64"):
        check_schema({"const": nested(100)}, "s")


def test_data_in_a_schema_is_not_read_as_one() -> None:
    check_schema({"const": {"type": 5}, "enum": [{"items": 5}], "default": {"required": 1}, "examples": [5]}, "s")
    check_schema({"properties": {"type": {"type": "string"}, "required": {"const": 5}}}, "s")


def test_no_schema_switches_the_compilers_checks_off() -> None:
    schemas: list[dict[str, Any]] = [{"x-guidance": {"lenient": True}}, {"items": {"x-guidance": {}}}]
    for schema in schemas:
        with pytest.raises(Rejected, match="'x-guidance' in 's' is not supported"):
            check_schema(schema, "s")


@pytest.mark.parametrize(
    "schema",
    [
        {"multipleOf": 12345.678},
        {"multipleOf": 0.3333333333333333},
        {"multipleOf": 1000003},
        {"multipleOf": 10**400 + 1},
        {"allOf": [{"multipleOf": 9973}, {"items": {"multipleOf": 9967}}]},
    ],
)
def test_a_multiple_that_would_take_minutes_to_compile_is_refused(schema: Any) -> None:
    with pytest.raises(Rejected, match="The values of 'multipleOf' in"):
        check_schema(schema, "s")


@pytest.mark.parametrize("value", [1, 0.01, 1e-9, 0.25, 12, 365, 5000, 10**9, 86400, 2.5])
def test_common_multiples_are_accepted(value: float) -> None:
    check_schema({"anyOf": [{"multipleOf": value}, {"multipleOf": 0.1}, {"multipleOf": 2}]}, "s")


def test_unknown_keywords_are_annotations() -> None:
    check_schema({"nullable": 5, "x-order": []}, "s")


def chain(count: int, wrap: Any) -> dict[str, Any]:
    defs = {f"d{i}": wrap({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    return {"$defs": defs | {f"d{count}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("wrap", "schemas"),
    [
        (lambda ref: ref, 1),
        (lambda ref: {"type": "array", "items": ref}, 2),
        (lambda ref: {"type": "object", "properties": {"a": ref}}, 2),
    ],
)
def test_nesting_is_counted_through_references(wrap: Any, schemas: int) -> None:
    """The compiler follows references recursively: chains of a thousand crashed the process."""
    fits = (MAX_DEPTH - 2) // schemas
    check_schema(chain(fits, wrap), "s")
    for count in (fits + 1, 2500):
        with pytest.raises(Rejected, match="nested deeper than 64 levels, including its references"):
            check_schema(chain(count, wrap), "s")


def test_recursion_does_not_count_as_nesting() -> None:
    defs = {f"d{i}": {"items": {"$ref": f"#/$defs/d{(i + 1) % 500}"}} for i in range(500)}
    check_schema({"$defs": defs, "$ref": "#/$defs/d0"}, "s")


def test_the_number_of_schemas_has_a_limit() -> None:
    check_schema({"anyOf": [{"a": i} for i in range(MAX_SUBSCHEMAS - 1)]}, "s")
    with pytest.raises(Rejected, match="more than 10000 subschemas"):
        check_schema({"anyOf": [{"a": i} for i in range(MAX_SUBSCHEMAS)]}, "s")


def test_the_target_of_a_reference_is_checked_at_any_location() -> None:
    with pytest.raises(Rejected, match="too many digits"):
        check_schema({"$ref": "#/foo", "foo": {"multipleOf": 1234567}}, "s")
