"""Converts ``oneOf`` to ``anyOf`` if a tag property makes the alternatives exclusive, as in discriminated unions.

The grammar compiler detects such properties only in inline alternatives, not in referenced ones.
"""

from __future__ import annotations

from typing import Any

from .json_schema import NAMED, ONE, SEVERAL
from .schema_references import target

MAX_REFERENCES = 16  # maximum number of references followed per alternative; this also ends reference cycles
Schema = Any


def oneof_to_anyof(schema: Schema) -> Schema:
    """Return an equivalent schema in which ``anyOf`` replaces each ``oneOf`` with exclusive alternatives.

    Alternatives are exclusive if a required string property distinguishes them. Other ``oneOf`` keywords are kept. The
    schema must be well formed (``check_schema``), and is not modified.
    """
    return _rewritten(schema, schema)


def _rewritten(schema: Schema, root: Schema) -> Schema:
    if not isinstance(schema, dict):
        return schema
    result = {}
    for keyword, value in schema.items():
        if keyword in ONE:
            result[keyword] = _rewritten(value, root)
        elif keyword in SEVERAL:
            result[keyword] = [_rewritten(entry, root) for entry in value]
        elif keyword in NAMED:
            result[keyword] = {name: _rewritten(entry, root) for name, entry in value.items()}
        else:
            result[keyword] = value
    if "oneOf" in schema and "anyOf" not in schema and _tagged(schema["oneOf"], root):
        result["anyOf"] = result.pop("oneOf")
    return result


def _tagged(alternatives: list[Schema], root: Schema) -> bool:
    """Return True if there is a property whose allowed strings are disjoint in all alternatives."""
    tags = [_tags(_resolved(alternative, root)) for alternative in alternatives]
    return any(_disjoint([own[name] for own in tags]) for name in tags[0] if all(name in own for own in tags))


def _disjoint(sets: list[set[str]]) -> bool:
    return sum(map(len, sets)) == len(set().union(*sets))


def _tags(schema: Schema) -> dict[str, set[str]]:
    """Return name → allowed strings, for the required properties of an object that allow only certain strings."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return {}
    found = {}
    for name in schema.get("required", ()):
        values = _texts(schema.get("properties", {}).get(name))
        if values is not None:
            found[name] = values
    return found


def _texts(schema: Schema) -> set[str] | None:
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum", [None])
    return set(values) if all(isinstance(value, str) for value in values) else None


def _resolved(schema: Schema, root: Schema) -> Schema:
    """Follow local references from ``schema``. Return the schema that is found; None if there is none."""
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if reference is None:
            return schema
        schema = target(reference, root)
    return None
