"""Grammars for tool calls: JSON for every model family. Required calls have arguments that are valid under the schemas.

Objects may have only the keys in a schema unless the schema explicitly allows others: small models would invent keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..parsers.tool_fields import ToolOptions
from ..parsers.tools.marked_calls import MarkedCallFormat
from .constraints import Constraint, lark_of_schema, schema_constraint, sized

PARAM = "tools"
MAX_CALLS = 32  # maximum per answer; without it, a small model could add calls until max_tokens is reached
# A schema that has only these keywords lists all its keys.
SIMPLE = {"type", "properties", "required", "title", "description", "$schema", "$defs", "definitions"}


def tool_constraint(options: ToolOptions) -> Constraint:
    """Return the constraint for required tool calls: the arguments of one function, or a list of calls.

    Raises Rejected if a schema cannot be used.
    """
    if options.named is not None:
        return schema_constraint(_arguments(options.schemas[options.named]), PARAM)
    more = "" if options.max_calls == 1 else f'(", " call){{0,{MAX_CALLS - 1}}} '
    lines = [f'start: "[" call {more}"]"']
    lines.append("call: " + " | ".join(f"call_{number}" for number in range(len(options.schemas))))
    for number, (name, schema) in enumerate(options.schemas.items()):
        head = json.dumps(f'{{"name": {json.dumps(name)}, "arguments": ')
        lines.append(f'call_{number}: {head} arguments_{number} "}}"')
        lines.append(f"arguments_{number}: {lark_of_schema(_arguments(schema), PARAM)}")
    return sized("\n".join(lines), PARAM)


def calls_alternative(options: ToolOptions, form: MarkedCallFormat, mark: Callable[[str], str]) -> str:
    """Return the Lark rule ``alternative``, which matches tool calls in the model's format.

    It is used if the output has another constraint. Arguments may be any object, so that a request with an unsupported
    schema is not rejected.

    mark: converts a marker to a Lark expression.
    """
    call = f'"{{\\"name\\": " NAME ", \\"{form.key}\\": " any_object "}}"'
    opens = "" if form.bare else f"{' '.join(map(mark, (*form.skips, form.opens[0])))} GAP "
    closes = f" GAP {mark(form.closes[0])}" if form.closes and not form.listed else ""
    many = options.max_calls != 1
    if form.listed:
        rest = f' (", " call){{0,{MAX_CALLS - 1}}}' if many else ""
        answer = f'{opens}"[" call{rest} "]"'
    else:
        between = f'"{form.separator} " ' if form.bare else "GAP "
        rest = f" ({between}{opens}call{closes}){{0,{MAX_CALLS - 1}}}" if many else ""
        answer = f"{opens}call{closes}{rest}"
    names = " | ".join(json.dumps(json.dumps(name)) for name in options.schemas)
    any_object = lark_of_schema({"type": "object"}, PARAM)
    return f"alternative: {answer}\ncall: {call}\nNAME: {names}\nany_object: {any_object}\n"


def _arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    closed = {"additionalProperties": False} if SIMPLE.issuperset(schema) else {}
    return {"type": "object", **schema, **closed}
