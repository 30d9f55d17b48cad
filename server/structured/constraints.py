"""Converts the constraint of a request, in any API, to a Lark grammar. The module does not compile grammars."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from ebbtide.errors import Rejected
from ebbtide.grammar import lark_of_regex

from .json_schema import check_schema
from .oneof import oneof_to_anyof

MAX_BYTES = 256 * 1024
MAX_CHOICES = 10_000
MAX_NAME = 64
# The whitespace allowed in JSON: one space, or a line break and an indent. Without this limit, small models generate
# spaces until max_tokens is reached.
WHITESPACE = r"[ ]|\n[ ]{0,16}"
NAMED_CONSTRAINTS = "'response_format', 'regex', 'ebnf', 'grammar', 'structured_outputs'"


class NamedSchema(msgspec.Struct):
    """A JSON schema in OpenAI's format. The schema is enforced regardless of ``strict``."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)] | None = None
    description: str | None = None
    schema: Any = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """The field ``response_format``.

    Attributes:
        schema: JSON schema for the type "json_object", as in llama-server.
    """

    type: str
    json_schema: NamedSchema | None = None
    schema: Any = None


class StructuredOutputs(msgspec.Struct):
    """The field ``structured_outputs``, as in vLLM. Exactly one of its fields must be set."""

    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None


class ConstraintFields(Protocol):
    """The fields of a request that constrain the output."""

    response_format: ResponseFormat | None
    regex: str | None
    ebnf: str | None
    grammar: str | None
    structured_outputs: StructuredOutputs | None


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on the output.

    Attributes:
        lark: the grammar.
        param: name of the request field that contains the constraint.
        unread: True if ``lark`` is the client's own grammar, in GBNF or Lark, which has yet to be converted in a
            compile thread.
    """

    lark: str
    param: str
    unread: bool = False


def constraint_of(fields: ConstraintFields) -> Constraint | None:
    """Return the request's constraint; None if it has none.

    Raises Rejected if the request has several constraints, or if the constraint is invalid.
    """
    found = [
        constraint
        for constraint in (
            _from_response_format(fields.response_format),
            None if fields.regex is None else regex_constraint(fields.regex, "regex"),
            None if fields.ebnf is None else ebnf_constraint(fields.ebnf, "ebnf"),
            None if fields.grammar is None else ebnf_constraint(fields.grammar, "grammar"),
            _from_structured_outputs(fields.structured_outputs),
        )
        if constraint is not None
    ]
    if len(found) > 1:
        raise Rejected(f"A request may have only one constraint, in one of {NAMED_CONSTRAINTS}.", param=found[1].param)
    return found[0] if found else None


def schema_constraint(schema: Any, param: str) -> Constraint:
    """Return a constraint that allows JSON values that are valid under ``schema``.

    Raises Rejected if the schema is not supported.
    """
    return sized(f"start: {lark_of_schema(schema, param)}", param)


def lark_of_schema(schema: Any, param: str) -> str:
    """Convert a schema to an expression for a Lark rule. Raises Rejected if the schema is not supported."""
    check_schema(schema, param)
    if schema is False:
        raise Rejected(f"'{param}' is false, but no output can satisfy this schema.", param=param)
    options = {"x-guidance": {"whitespace_pattern": WHITESPACE}}
    written = json.dumps((oneof_to_anyof(schema) if isinstance(schema, dict) else {}) | options)
    return f"%json {written}"


def json_constraint(schema: Any, param: str) -> Constraint:
    """Like ``schema_constraint``, but the schema may also be a string that contains JSON.

    Raises Rejected if the string is too large or not JSON, or if the schema is not supported.
    """
    if isinstance(schema, str):
        sized(schema, param)
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise Rejected(f"'{param}' has a schema that is not valid JSON.", param=param) from error
    return schema_constraint(schema, param)


def regex_constraint(regex: str, param: str) -> Constraint:
    """Return a constraint that allows text that matches ``regex`` completely.

    Raises Rejected if the expression is empty, too long or not supported.
    """
    if not regex:
        raise Rejected(f"'{param}' is empty.", param=param)
    return sized(lark_of_regex(sized(regex, param).lark), param)


def choice_constraint(choices: list[str], param: str) -> Constraint:
    """Return a constraint that allows exactly the strings in ``choices``.

    Raises Rejected if there are no choices or too many, or if one is empty.
    """
    if len(choices) > MAX_CHOICES:
        raise Rejected(f"'{param}' has {len(choices)} choices: at most {MAX_CHOICES} are allowed.", param=param)
    if not choices or not all(choices):
        raise Rejected(f"'{param}' must have at least one entry and no empty entry.", param=param)
    written = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in dict.fromkeys(choices))
    # A single terminal is used, because a rule cannot have thousands of alternatives.
    return sized(f"start: CHOICE\nCHOICE: {written}", param)


def ebnf_constraint(text: str, param: str) -> Constraint:
    """Return a constraint that allows text that matches a GBNF or Lark grammar.

    Raises Rejected if the grammar is too long.
    """
    sized(text, param)
    return Constraint(text, param, unread=True)


def _from_response_format(form: ResponseFormat | None) -> Constraint | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return schema_constraint({"type": "object"} if form.schema is None else form.schema, "response_format")
    if form.type != "json_schema":
        raise Rejected(
            f"'response_format' has the type {form.type[:50]!r}: text, json_object and json_schema are supported.",
            param="response_format",
        )
    if form.json_schema is None or form.json_schema.schema is None:
        raise Rejected("'response_format' of type json_schema needs 'json_schema.schema'.", param="response_format")
    return schema_constraint(form.json_schema.schema, "response_format")


def _json_object(_: bool, param: str) -> Constraint:
    return schema_constraint({"type": "object"}, param)


def _structural_tag(_: Any, param: str) -> Constraint:
    raise Rejected("'structural_tag' is not supported by this server.", param=param)


KINDS: dict[str, Callable[[Any, str], Constraint]] = {
    "json": json_constraint,
    "regex": regex_constraint,
    "choice": choice_constraint,
    "grammar": ebnf_constraint,
    "json_object": _json_object,
    "structural_tag": _structural_tag,
}


def _from_structured_outputs(outputs: StructuredOutputs | None) -> Constraint | None:
    if outputs is None:
        return None
    if outputs.json_object is False:  # the same as an absent field
        outputs = msgspec.structs.replace(outputs, json_object=None)
        if outputs == StructuredOutputs():
            return None
    given = {kind: value for kind in KINDS if (value := getattr(outputs, kind)) is not None}
    if len(given) != 1:
        raise Rejected(
            f"'structured_outputs' must have exactly one of {', '.join(KINDS)}; it has {len(given)}.",
            param="structured_outputs",
        )
    ((kind, value),) = given.items()
    return KINDS[kind](value, "structured_outputs")


def sized(lark: str, param: str) -> Constraint:
    """Return the constraint with the grammar ``lark``. Raises Rejected if the grammar is too large."""
    if len(lark) > MAX_BYTES:
        raise Rejected(f"'{param}' is larger than {MAX_BYTES // 1024} KiB.", param=param)
    return Constraint(lark, param)
