"""Answers that must be calls, as a constraint: JSON whatever the model's family, arguments valid for their schemas.

Only keys that a schema names are written where it says nothing of others: a small model would make some up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .constraints import Constraint, lark_of_schema, schema_constraint, sized
from .tool_fields import ToolUse

PARAM = "tools"
MAX_CALLS = 32  # in one answer: a small model that must call would call until its budget is spent
# A schema with nothing else than these names all keys that it knows of.
SIMPLE = {"type", "properties", "required", "title", "description", "$schema", "$defs", "definitions"}


def tool_constraint(use: ToolUse) -> Constraint:
    """What the answers must match when a call is required: one function's arguments, or a list of calls.

    Raises Rejected for a schema that cannot be used.
    """
    if use.named is not None:
        return schema_constraint(_arguments(use.schemas[use.named]), PARAM)
    more = "" if use.max_calls == 1 else f'(", " call){{0,{MAX_CALLS - 1}}} '
    lines = [f'start: "[" call {more}"]"']
    lines.append("call: " + " | ".join(f"call_{number}" for number in range(len(use.schemas))))
    for number, (name, schema) in enumerate(use.schemas.items()):
        head = json.dumps(f'{{"name": {json.dumps(name)}, "arguments": ')
        lines.append(f'call_{number}: {head} arguments_{number} "}}"')
        lines.append(f"arguments_{number}: {lark_of_schema(_arguments(schema), PARAM)}")
    return sized("\n".join(lines), PARAM)


def _arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    closed = {"additionalProperties": False} if SIMPLE.issuperset(schema) else {}
    return {"type": "object", **schema, **closed}
