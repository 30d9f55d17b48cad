"""Discriminated unions, as pydantic writes them, and what must stay a ``oneOf``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from ebbtide.grammar import Guidance, grammar_of
from ebbtide.server.structured.constraints import schema_constraint
from ebbtide.server.structured.oneof import oneof_to_anyof
from ebbtide.tokenization.vocabulary import SIM_VOCAB_SIZE, sim_vocabulary


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog", "hound"]
    tricks: list[str]


class Home(BaseModel):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]


def tagged(tag: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": tag}, "required": ["kind"], **more}


def test_a_discriminated_union_can_be_enforced() -> None:
    schema = TypeAdapter(Home).json_schema()
    constraint = schema_constraint(schema, "schema")
    place = Guidance(sim_vocabulary(), SIM_VOCAB_SIZE, ()).compile(grammar_of(constraint.lark, special_ids={}))
    for token in b'{"pets": [{"kind": "hound", "tricks": []}, {"kind": "cat", "lives":':
        place.advance(token)
    assert "oneOf" in str(schema)


def test_alternatives_with_a_distinguishing_tag_become_any_of() -> None:
    one, other = tagged({"const": "a"}), tagged({"enum": ["b", "c"]})
    assert oneof_to_anyof({"oneOf": [one, other]}) == {"anyOf": [one, other]}
    defs = {"x": one, "y": {"$ref": "#/$defs/z"}, "z": other}
    links = [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}]
    deep = {"properties": {"p": {"items": {"oneOf": links}}}, "$defs": defs}
    assert oneof_to_anyof(deep) == {"properties": {"p": {"items": {"anyOf": links}}}, "$defs": defs}


@pytest.mark.parametrize(
    "alternatives",
    [
        [tagged({"const": "a"}), tagged({"const": "a"})],
        [tagged({"const": "a"}), tagged({"enum": ["b", "a"]})],
        [tagged({"const": "a"}), {"type": "object", "properties": {"kind": {"const": "b"}}}],
        [tagged({"const": "a"}), tagged({"type": "string"})],
        [tagged({"const": 1}), tagged({"const": 1.0})],
        [tagged({"const": "a"}), {"required": ["kind"], "properties": {"kind": {"const": "b"}}}],
        [tagged({"const": "a"}), True],
        [tagged({"const": "a"}), {"$ref": "#/$defs/nowhere"}],
        [{"$ref": "#"}, {"$ref": "#"}],
        [tagged({"const": "a"}), {"type": "string"}],
    ],
)
def test_all_others_stay_one_of(alternatives: list[Any]) -> None:
    schema = {"oneOf": alternatives}
    assert oneof_to_anyof(schema) == schema


def test_data_and_existing_any_of_are_left_alone() -> None:
    union = {"oneOf": [tagged({"const": "a"}), tagged({"const": "b"})]}
    for schema in ({"const": union}, {"enum": [union]}, {"default": union}, {**union, "anyOf": [{}]}):
        assert oneof_to_anyof(schema) == schema
