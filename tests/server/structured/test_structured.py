"""Constraints over HTTP: what the engine receives, and that no request runs without its constraint."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from ebbtide.errors import Rejected
from ebbtide.grammar import Guidance, ReasoningPrefix
from ebbtide.server.structured import structured as structured_module
from ebbtide.server.structured.constraints import (
    Constraint,
    choice_constraint,
    ebnf_constraint,
    schema_constraint,
)
from ebbtide.server.structured.gbnf import lark_of_ebnf
from ebbtide.server.structured.structured import StructuredOutput
from ebbtide.tokenization.tokenizer import SimTokenizer
from ebbtide.tokenization.vocabulary import SIM_VOCAB_SIZE, sim_vocabulary

from ..api.test_bad_input import check_refused
from ..conftest import INFO, World

pytestmark = pytest.mark.anyio

GUIDANCE = Guidance(sim_vocabulary(), SIM_VOCAB_SIZE, ())
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ADA = '{"name": "Ada", "age": 36}'


def matches(grammar: str, answer: str) -> bool:
    """True if ``answer`` is a complete text of the grammar."""
    matcher = GUIDANCE.compile(grammar)
    for token in answer.encode():
        if matcher.complete or not matcher.allows(token):
            return False
        matcher.advance(token)
    return matcher.complete or any(matcher.allows(token) for token in sim_vocabulary().eos_ids)


def schema_format(schema: Any, **more: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"response_format": {"type": "json_object"}}, ['{"a": [1, null]}', "{}"], ["[]", "1", "yes", '{"a": }']),
        ({"response_format": {"type": "json_object", "schema": PERSON}}, [ADA], ["{}"]),
        ({"response_format": schema_format(PERSON, strict=True)}, [ADA], ["{}", '{"name": "Ada"}']),
        ({"response_format": schema_format(PERSON)}, [ADA, '{"name":"","age":0}'], ['{"age": 1, "name": ""}']),
        ({"response_format": schema_format({"const": {"a": [1, "x"]}})}, ['{"a": [1, "x"]}'], ['{"a": [1, "y"]}']),
        ({"response_format": schema_format({"enum": ["a", 1, None]})}, ['"a"', "1", "null"], ['"b"', "11", '"a']),
        ({"response_format": schema_format(True)}, ["1", "[]"], ["yes"]),
        ({"regex": "[0-9]{2}(px|em)"}, ["10px"], ["1px", "10px!"]),
        ({"regex": "^a/b$"}, ["a/b"], ["a"]),
        ({"ebnf": 'root ::= "a" b\nb ::= [0-9]+'}, ["a1"], ["a"]),
        ({"ebnf": 'start: "x" NUMBER\nNUMBER: /[0-9]+/'}, ["x1"], ["x"]),
        ({"structured_outputs": {"json": PERSON}}, [ADA], ["{}"]),
        ({"structured_outputs": {"json": json.dumps(PERSON)}}, [ADA], ["{}"]),
        ({"structured_outputs": {"regex": "a+"}}, ["aa"], ["b"]),
        ({"structured_outputs": {"choice": ["yes", "no", 'été "😀"']}}, ["yes", 'été "😀"'], ["y", "yesno"]),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, ["a"], ["b"]),
        ({"structured_outputs": {"json_object": True, "regex": None}}, ["{}"], ["1"]),
    ],
)
async def test_a_constraint_reaches_the_engine(world: World, fields: Any, good: list[str], bad: list[str]) -> None:
    for ask in (world.chat, world.complete):
        reply = await ask(**fields)
        assert reply.status_code == 200, reply.text
        grammar = world.engine.requests[-1].grammar
        assert [matches(grammar, answer) for answer in good] == [True] * len(good)
        assert [matches(grammar, answer) for answer in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None, "regex": None, "ebnf": None, "structured_outputs": None},
        {"response_format": {"type": "text"}},
        {"guided_json": None, "grammar": None, "structural_tag": None},
    ],
)
async def test_null_and_text_are_not_a_constraint(world: World, fields: Any) -> None:
    assert (await world.chat(**fields)).status_code == 200
    assert world.engine.requests[0].grammar == ""


async def test_a_text_format_beside_a_constraint_has_no_effect(world: World) -> None:
    assert (await world.chat(response_format={"type": "text"}, regex="a")).status_code == 200
    assert matches(world.engine.requests[0].grammar, "a")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("regex", ["(unclosed", "[", "a$b", "\\bword", "(?=a)b", 5, [], "(" * 10_000]),
        ("regex", ["[^\\s\\S]"]),
        ("ebnf", ["x", "root ::= b", 'root ::= "a', "start: %%%", 'start: "a" B', 5, "start: start"]),
        ("ebnf", ['%llguidance {"no_forcing": false}\nstart: "a"', "root ::= " + "(" * 3000 + '"a"' + ")" * 3000]),
        ("ebnf", ['start: %json {"type": "object"}', 'start: %regex {"substring_chars": "a"}']),
        ("response_format", [schema_format(None), {"type": "json_schema", "json_schema": {"name": "x"}}]),
        ("response_format", [schema_format(5), schema_format("x"), schema_format([]), schema_format(False)]),
        ("response_format", [schema_format({"not": {}}), schema_format({"type": "string", "format": "odd"})]),
        ("response_format", [schema_format({"$ref": "#/$defs/no"}), schema_format({"$ref": "http://127.0.0.1:1/"})]),
        ("response_format", [schema_format({"$ref": "#"}), schema_format({"type": "string", "pattern": "("})]),
        ("response_format", [schema_format({"oneOf": [{"minimum": 1}, {"type": "integer"}]})]),
        ("response_format", [{"type": "json_object", "schema": {"type": "odd"}}, {"type": "structural_tag"}]),
        ("response_format.json_schema.strict", [schema_format({}, strict="true"), schema_format({}, strict=1)]),
        ("response_format.json_schema.name", [schema_format({}, name="x" * 65)]),
        ("structured_outputs", [{"regex": "a", "choice": ["b"]}, {"regx": "a"}]),
        ("structured_outputs", [{"choice": []}, {"choice": [""]}, {"json": "{bad"}, {"json": "5"}, {"regex": "("}]),
        ("structured_outputs", [{"structural_tag": {"a": 1}}, {"grammar": "no"}]),
        ("structured_outputs.choice", [{"choice": "yes"}, {"choice": [1]}]),
        ("guided_json", [{"type": "object"}]),
        ("guided_grammar", ["x"]),
        ("grammar", ["no", 5]),
        ("json_schema", [{"type": "object"}]),
        ("structural_tag", [{"a": 1}]),
    ],
)
async def test_constraints_that_cannot_be_enforced_are_refused_by_name(
    world: World, field: str, values: list[Any]
) -> None:
    for value in values:
        for ask in (world.chat, world.complete):
            reply = await ask(**{field.partition(".")[0]: value}, stream=True)
            check_refused(reply, field.replace("[", "").replace("]", "") if "." not in field else None)
            assert len(reply.content) < 1000
    assert world.engine.requests == []


async def test_two_constraints_are_refused(world: World) -> None:
    reply = await world.chat(regex="a", ebnf='start: "a"')
    check_refused(reply, "ebnf")
    assert "only one constraint" in reply.json()["error"]["message"]
    check_refused(await world.chat(response_format={"type": "json_object"}, structured_outputs={"regex": "a"}))


async def test_a_grammar_that_takes_too_long_is_refused_and_another_is_not(world: World, monkeypatch: Any) -> None:
    release = threading.Event()
    compile_now = Guidance.compile

    def slow(self: Guidance, grammar: str) -> Any:
        if "slow" in grammar:
            release.wait(20)
        return compile_now(self, grammar)

    monkeypatch.setattr(Guidance, "compile", slow)
    structured = StructuredOutput(SimTokenizer().vocabulary, INFO, 0.05)
    try:
        with pytest.raises(Exception, match=r"longer than 0\.05 s to compile \(--grammar-timeout\)"):
            await structured.compile(choice_constraint(["slow"], "regex"))
        assert matches(await structured.compile(choice_constraint(["fast"], "regex")), "fast")
        release.set()
        assert matches(await structured.compile(choice_constraint(["slow"], "regex")), "slow")
    finally:
        release.set()
        structured.close()


async def test_reading_the_vocabulary_does_not_count_against_a_grammar(world: World, monkeypatch: Any) -> None:
    """The vocabulary is read with the first grammar, which takes seconds for a large one on a busy machine."""
    build, begun, release = Guidance.__init__, threading.Event(), threading.Event()

    def slow(self: Guidance, *args: Any) -> None:
        begun.set()
        assert release.wait(20)
        build(self, *args)

    monkeypatch.setattr(Guidance, "__init__", slow)
    structured = StructuredOutput(SimTokenizer().vocabulary, INFO, 0.2)
    try:
        asking = asyncio.create_task(structured.compile(choice_constraint(["x"], "regex")))
        assert await asyncio.to_thread(begun.wait, 20)
        assert await asyncio.wait({asking}, timeout=0.4) == (set(), {asking})
        release.set()
        assert (await asking).startswith("{")
    finally:
        release.set()
        structured.close()


async def test_a_grammar_is_compiled_once_for_all_requests(world: World, monkeypatch: Any) -> None:
    compiled: list[str] = []
    compile_now = Guidance.compile

    def counted(self: Guidance, grammar: str) -> Any:
        compiled.append(grammar)
        return compile_now(self, grammar)

    monkeypatch.setattr(Guidance, "compile", counted)
    replies = await asyncio.gather(*(world.chat(response_format=schema_format(PERSON)) for _ in range(10)))
    assert {reply.status_code for reply in replies} == {200}
    check_refused(await world.chat(regex="("), "regex")
    check_refused(await world.chat(regex="("), "regex")
    assert len(compiled) == 2


@pytest.mark.parametrize("mark", ["</think>", "<|user|>"])
async def test_a_constraint_can_start_after_a_mark(world: World, mark: str) -> None:
    """The first is text, the second a control token of the simulated model."""
    constraint = schema_constraint({"const": [1]}, "response_format")
    grammar = await world.state.structured.compile(constraint, prefix=ReasoningPrefix(mark))
    matcher = GUIDANCE.compile(grammar)
    free = "I think </thin [2] " + ("" if mark == "</think>" else "</think>")
    special = {name: token for token, name in enumerate(map(bytes.decode, sim_vocabulary().pieces[256:]), 256)}
    end = [special[mark]] if mark in special else list(mark.encode())
    for token in [*free.encode(), *end, *b"\n\n[1]"]:
        assert not matcher.complete
        matcher.advance(token)
    assert matcher.complete
    assert not matches(grammar, "[1]")


@pytest.mark.parametrize("opens", ["<think>", "<|user|>"])
@pytest.mark.parametrize("closes", ["</think>", "<|system|>"])
async def test_the_text_before_a_constraint_can_be_omitted(world: World, opens: str, closes: str) -> None:
    constraint = schema_constraint({"const": [1]}, "response_format")
    grammar = await world.state.structured.compile(constraint, prefix=ReasoningPrefix(closes, opens))
    special = {name: token for token, name in enumerate(map(bytes.decode, sim_vocabulary().pieces[256:]), 256)}

    def accepts(*texts: str) -> bool:
        matcher = GUIDANCE.compile(grammar)
        for token in [t for text in texts for t in ([special[text]] if text in special else text.encode())]:
            if matcher.complete or not matcher.allows(token):
                return False
            matcher.advance(token)
        return matcher.complete

    assert accepts("[1]")
    assert accepts(opens, "why [2]\n", closes, "\n\n", "[1]")
    assert accepts("\n", opens, closes, "[1]")
    assert not accepts("why", closes, "[1]")
    assert not accepts(opens, "why [1]")
    assert not accepts(opens, "why", closes, "[2]")


async def test_whitespace_is_bounded(world: World) -> None:
    await world.chat(response_format=schema_format(PERSON))
    grammar = world.engine.requests[0].grammar
    assert matches(grammar, '{\n    "name": "Ada",\n    "age": 36\n}')
    assert not matches(grammar, '{  "name": "Ada", "age": 36}')
    assert not matches(grammar, '{\n\n"name": "Ada", "age": 36}')
    assert not matches(grammar, "{\n" + " " * 17 + '"name": "Ada", "age": 36}')
    assert not matches(grammar, ADA + " ")


async def test_a_constraint_of_another_part_of_the_server_is_compiled_the_same_way(world: World) -> None:
    grammar = await world.state.structured.compile(Constraint('start: "x"', "tools"))
    assert matches(grammar, "x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ebnf", 'root ::= ""'),
        ("ebnf", 'start: ""'),
        ("ebnf", 'root ::= a a\na ::= "" | ""'),
        ("regex", "a{0}"),
        ("regex", "(|)"),
        ("structured_outputs", {"grammar": 'root ::= ""'}),
    ],
)
async def test_a_grammar_of_the_empty_text_alone_is_refused(world: World, field: str, value: Any) -> None:
    """Regression: such a request was accepted and ended with 500."""
    check_refused(await world.chat(**{field: value}), field)
    assert world.engine.requests == []


async def test_thousands_of_choices_are_enforced_and_the_limit_is_stated(world: World) -> None:
    choices = [f"choice {number}" for number in range(10_000)]
    assert (await world.chat(structured_outputs={"choice": choices})).status_code == 200
    grammar = world.engine.requests[-1].grammar
    assert [matches(grammar, text) for text in ("choice 9999", "choice 12", "choice 1a")] == [True, True, False]
    reply = await world.chat(structured_outputs={"choice": [*choices, "one"]})
    check_refused(reply, "structured_outputs")
    assert "has 10001 choices: at most 10000 are allowed" in reply.json()["error"]["message"]


async def test_a_grammar_that_finds_no_thread_in_time_is_refused_with_retry_after(
    world: World, monkeypatch: Any
) -> None:
    begun, release, read_now = threading.Semaphore(0), threading.Event(), lark_of_ebnf

    def slow(text: str) -> str:
        if "slow" in text:
            begun.release()
            assert release.wait(20)
        return read_now(text)

    monkeypatch.setattr(structured_module, "lark_of_ebnf", slow)
    structured = StructuredOutput(SimTokenizer().vocabulary, INFO, 0.05)
    try:
        for number in range(structured_module.NUM_THREADS):
            with pytest.raises(Rejected, match="longer than"):  # reading it is within the time limit, too
                await structured.compile(ebnf_constraint(f'root ::= "slow{number}"', "ebnf"))
        with pytest.raises(Rejected, match="busy") as caught:
            await structured.compile(choice_constraint(["fast"], "regex"))
        assert (caught.value.status, caught.value.kind, caught.value.retry_after_s) == (503, "overloaded_error", 5)
        release.set()
        assert matches(await structured.compile(choice_constraint(["fast"], "regex")), "fast")
    finally:
        release.set()
        structured.close()


async def test_a_large_grammar_is_not_kept_in_memory_after_it_is_read(world: World, monkeypatch: Any) -> None:
    read: list[int] = []
    read_now = lark_of_ebnf

    def counted(text: str) -> str:
        read.append(len(text))
        return read_now(text)

    monkeypatch.setattr(structured_module, "lark_of_ebnf", counted)
    for text in ('root ::= "a"', 'root ::= "' + "a" * 20_000 + '"'):
        for _ in range(2):
            assert (await world.chat(ebnf=text)).status_code == 200
    assert read == [12, 20_011, 20_011]
