"""Random JSON schemas of every kind that can be enforced, each with a prompt, and a check of the answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from jsonschema import Draft202012Validator

Schema = dict[str, Any]

NAMES = ["name", "age", "city", "tags", "price", "id", "état", "a b", 'quo"te', "x_1", "😀", "back\\slash"]
WORDS = ["red", "green", "blue", "", "two words", 'with "quotes"', "naïve", "日本", "\t", "null"]
PROMPTS = [
    "Describe a person.",
    "Give me an example object as JSON.",
    "Schreibe die Daten eines Schiffes auf.",
    "Invent a product of a web shop.",
    "What is the weather in Lisbon? Answer with numbers.",
    "List some animals with their properties.",
    "Write a poem.",
    "Extract the facts: Ada, 36, lives in London and likes tea, maths and the sea.",
]


def _string(rng: random.Random, _: int) -> Schema:
    kinds: list[Schema] = [
        {"type": "string", "maxLength": rng.randint(0, 30)},
        {"type": "string", "minLength": rng.randint(1, 5), "maxLength": rng.randint(5, 20)},
        {"type": "string", "pattern": rng.choice(["^[a-z]{2,8}$", "^[A-Z][a-z]+( [A-Z][a-z]+)?$", "^\\d{3}-\\d{4}$"])},
        {"type": "string", "format": rng.choice(["date", "ipv4", "email", "uuid", "date-time", "time"])},
    ]
    return rng.choice(kinds)


def _number(rng: random.Random, _: int) -> Schema:
    low = rng.randint(-1000, 1000)
    kinds: list[Schema] = [
        {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)},
        {"type": "integer", "exclusiveMinimum": low},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 2.5},
        {"type": "integer", "multipleOf": rng.choice([2, 5, 10])},
    ]
    return rng.choice(kinds)


def _fixed(rng: random.Random, _: int) -> Schema:
    values: list[Any] = [*WORDS, 0, -1, 1.5, True, None, [1, "a"], {"k": [None]}]
    kinds: list[Schema] = [
        {"enum": rng.sample(values, 3)},
        {"const": rng.choice(values)},
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["boolean", "null"]},
    ]
    return rng.choice(kinds)


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    kinds: list[Schema] = [
        {"type": "array", "items": _value(rng, depth - 1), "minItems": least, "maxItems": least + rng.randint(0, 3)},
        {"type": "array", "prefixItems": [_value(rng, 0), _value(rng, 0)], "minItems": 2, "items": False},
    ]
    return rng.choice(kinds)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.randint(1, 4))
    schema: Schema = {"type": "object", "properties": {name: _value(rng, depth - 1) for name in names}}
    schema["required"] = rng.sample(names, rng.randint(0, len(names)))
    if rng.random() < 0.8:
        schema["additionalProperties"] = False if rng.random() < 0.8 else _fixed(rng, 0)
    return schema


def _either(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_value(rng, depth - 1), {"type": "null"}]}


LEAVES: list[Callable[[random.Random, int], Schema]] = [_string, _number, _fixed]
ALL = [*LEAVES, _array, _object, _either]


def _value(rng: random.Random, depth: int) -> Schema:
    return rng.choice(ALL if depth > 0 else LEAVES)(rng, depth)


def random_schema(seed: int) -> Schema:
    """A schema whose shortest text has some dozens of tokens; some schemas refer to their own definitions."""
    rng = random.Random(seed)
    schema = rng.choice([_object, _object, _object, _array, _either])(rng, 3)
    if rng.random() < 0.2:
        shared = {"type": "object", "properties": {"note": _string(rng, 0)}, "required": ["note"]}
        link = {"$ref": "#/$defs/shared"}
        return {"type": "object", "properties": {"it": schema, "more": link}, "required": ["more"]} | {
            "$defs": {"shared": shared}
        }
    return schema


def request_of(seed: int, schema: Schema) -> dict[str, Any]:
    """The body of a chat request for an answer under ``schema``: greedy or drawn, from one of the prompts."""
    rng = random.Random(seed)
    return {
        "messages": [{"role": "user", "content": PROMPTS[seed % len(PROMPTS)]}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
        "temperature": rng.choice([0, 0, 0.7, 1.5]),
        "seed": seed,
    }


def check_valid(text: str, schema: Schema) -> None:
    """Raises ValidationError or JSONDecodeError unless ``text`` is JSON that is valid under ``schema``."""
    checker = Draft202012Validator.FORMAT_CHECKER
    Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))
