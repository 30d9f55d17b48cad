"""A neutral value has no effect, in every field of every generating route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import inspect, structs

from ebbtide.messages import GenerateReq
from ebbtide.server.api.anthropic.messages import MESSAGES
from ebbtide.server.api.generation import RouteSpec
from ebbtide.server.api.neutral import EMPTY_ASKS, EMPTY_IS_A_VALUE, NEUTRAL
from ebbtide.server.api.openai.chat import CHAT_COMPLETIONS
from ebbtide.server.api.openai.completions import COMPLETIONS
from ebbtide.server.api.openai.responses import RESPONSES
from ebbtide.server.api.sglang.generate import GENERATE
from ebbtide.server.api.sglang.generate_request import SamplingFields
from ebbtide.server.api.unsupported import CHECKED_APART

from ..conftest import World
from ..structured.test_structured import matches

pytestmark = pytest.mark.anyio

HI = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, tuple[RouteSpec[Any], dict[str, Any]]] = {
    "/v1/chat/completions": (CHAT_COMPLETIONS, {"messages": HI}),
    "/v1/completions": (COMPLETIONS, {"prompt": "hi"}),
    "/v1/responses": (RESPONSES, {"input": "hi"}),
    "/v1/messages": (MESSAGES, {"messages": HI, "max_tokens": 9}),
    "/generate": (GENERATE, {"text": "hi"}),
}
EMPTY: list[Any] = ["", [], {}, [""]]


async def asked(world: World, path: str, body: dict[str, Any]) -> GenerateReq:
    """Return the request that the engine received, without the fields that differ between equal requests."""
    reply = await world.client.post(path, json=body)
    assert reply.status_code == 200, (body, reply.text)
    request = world.engine.requests[-1]
    assert isinstance(request, GenerateReq)
    return structs.replace(request, rids=(), sampling=structs.replace(request.sampling, seed=0))


def takes(kind: inspect.Type, value: Any) -> bool:
    """True if a field of this type takes values like ``value``."""
    if isinstance(kind, inspect.Metadata):
        return takes(kind.type, value)
    if isinstance(kind, inspect.UnionType):
        return any(takes(member, value) for member in kind.types)
    if isinstance(kind, inspect.ListType) and isinstance(value, list):
        return all(takes(kind.item_type, entry) for entry in value)
    kinds = (inspect.StrType, inspect.LiteralType) if isinstance(value, str) else ()
    objects = (inspect.DictType, inspect.StructType) if isinstance(value, dict) else ()
    return isinstance(kind, (inspect.AnyType, *kinds, *objects))


def optional_fields(kind: type) -> Iterator[inspect.Field]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    yield from (field for field in info.fields if not field.required and field.name not in EMPTY_IS_A_VALUE)


def all_set_to(kind: type, value: Any) -> dict[str, Any]:
    """Return an object in which every optional field that takes ``value`` has it."""
    return {field.name: value for field in optional_fields(kind) if takes(field.type, value)}


@pytest.mark.parametrize("path", ROUTES)
async def test_unsupported_fields_with_a_neutral_value_are_accepted(world: World, path: str) -> None:
    spec, body = ROUTES[path]
    plain = await asked(world, path, body)
    names = {*spec.unsupported, *CHECKED_APART}
    for value in [None, False, *EMPTY]:
        fields = {name: value for name in names if value is None or value is False or name not in EMPTY_ASKS}
        assert await asked(world, path, {**fields, **body}) == plain
    for name in names:
        for value in NEUTRAL.get(name, ()):
            assert await asked(world, path, {name: value, **body}) == plain


@pytest.mark.parametrize("path", ROUTES)
async def test_unsupported_fields_with_another_value_are_refused_by_name(world: World, path: str) -> None:
    spec, body = ROUTES[path]
    for name in {*spec.unsupported, *CHECKED_APART}:
        for value in ("something", ["something"], {"some": "thing"}, True, 7):
            reply = await world.client.post(path, json={**body, name: value})
            assert (reply.status_code, name in reply.text) == (400, True), (name, value, reply.text)
    assert world.engine.requests == []


@pytest.mark.parametrize("path", ROUTES)
async def test_supported_fields_with_a_neutral_value_are_ignored(world: World, path: str) -> None:
    spec, body = ROUTES[path]
    plain = await asked(world, path, body)
    for value in EMPTY:
        fields = all_set_to(spec.body, value)
        assert fields, value
        assert await asked(world, path, {**fields, **body}) == plain
    for field in optional_fields(spec.body):
        for value in [None, *NEUTRAL.get(field.name, ())]:
            assert await asked(world, path, {**body, field.name: value}) == plain, field.name


async def test_sampling_params_with_a_neutral_value_are_ignored(world: World) -> None:
    plain = await asked(world, "/generate", {"text": "hi"})
    for value in EMPTY:
        fields = all_set_to(SamplingFields, value)
        assert fields, value
        for shape in (fields, [fields]):
            assert await asked(world, "/generate", {"text": "hi", "sampling_params": shape}) == plain
    for field in optional_fields(SamplingFields):
        for neutral in NEUTRAL.get(field.name, ()):
            sampling = {field.name: neutral}
            assert await asked(world, "/generate", {"text": "hi", "sampling_params": sampling}) == plain


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        # the values that unmodified clients were seen to send
        ("/generate", {"sampling_params": {"stop_regex": [], "custom_params": {}, "structural_tag": ""}}),
        ("/v1/completions", {"best_of": 1, "max_tokens": -1, "logprobs": False, "stop": ["", ""]}),
        ("/v1/chat/completions", {"functions": [], "function_call": "auto", "min_new_tokens": 0, "guided_json": {}}),
        ("/v1/chat/completions", {"truncate_prompt_tokens": -1, "max_tokens": -1, "stop": ""}),
        ("/v1/chat/completions", {"logprobs": False, "top_logprobs": 0}),
        ("/v1/chat/completions", {"response_format": {}, "tool_choice": {}, "stream_options": {}}),
        ("/v1/chat/completions", {"structured_outputs": {"regex": "", "json_object": False}}),
        ("/v1/chat/completions", {"stream_options": {"include_usage": False}}),
        ("/v1/responses", {"top_logprobs": 0, "text": {"format": {"type": "text"}}, "reasoning": {"effort": None}}),
        ("/v1/messages", {"stop_sequences": [""], "tools": [], "thinking": {}, "output_config": {}}),
    ],
)
async def test_neutral_values_of_common_clients_change_nothing(world: World, path: str, fields: dict[str, Any]) -> None:
    _, body = ROUTES[path]
    assert await asked(world, path, {**body, **fields}) == await asked(world, path, body)


@pytest.mark.parametrize(
    ("path", "body", "empty"),
    [
        ("/generate", {"text": "hi"}, {"input_ids": []}),
        ("/generate", {"input_ids": [1, 2]}, {"text": ""}),
        ("/generate", {"input_ids": [1, 2]}, {"text": []}),
        ("/generate", {"text": ["a", "b"]}, {"input_ids": []}),
    ],
)
async def test_an_empty_prompt_next_to_its_alternative_is_as_if_absent(
    world: World, path: str, body: dict[str, Any], empty: dict[str, Any]
) -> None:
    plain = await asked(world, path, body)
    assert await asked(world, path, body | empty) == await asked(world, path, empty | body) == plain


async def test_an_empty_text_or_conversation_to_tokenize_is_as_if_absent_next_to_the_other(world: World) -> None:
    for body, empties in (({"prompt": "a"}, [[]]), ({"messages": HI}, ["", []])):
        plain = (await world.client.post("/tokenize", json=body)).json()
        other = "messages" if "prompt" in body else "prompt"
        for empty in empties:
            reply = await world.client.post("/tokenize", json={**body, other: empty})
            assert (reply.status_code, reply.json()) == (200, plain), (body, empty)
    for fields in ({"prompt": ""}, {"prompt": "", "messages": None}):
        assert (await world.client.post("/tokenize", json=fields)).status_code == 200
    reply = await world.client.post("/tokenize", json={"prompt": "", "messages": []})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")


async def test_empty_alternatives_of_a_constraint_are_as_if_absent(world: World) -> None:
    path, body = "/v1/chat/completions", {"messages": HI}
    empties: dict[str, Any] = {"json": None, "regex": "", "choice": [], "grammar": "", "json_object": False}
    empties["structural_tag"] = None
    plain = await asked(world, path, body)
    assert await asked(world, path, {**body, "structured_outputs": empties}) == plain
    assert await asked(world, path, {**body, "structured_outputs": {**empties, "json": ""}}) == plain
    chosen = await asked(world, path, {**body, "structured_outputs": {"choice": ["a"]}})
    assert await asked(world, path, {**body, "structured_outputs": {**empties, "choice": ["a"]}}) == chosen
    schema = await asked(world, path, {**body, "structured_outputs": {"json": {}}})
    assert schema.grammar is not None
    assert await asked(world, path, {**body, "structured_outputs": {**empties, "json": {}}}) == schema
    regex = await asked(world, path, {**body, "structured_outputs": {**empties, "regex": "a+"}})
    assert matches(regex.grammar, "aa")
    assert not matches(regex.grammar, "b")


async def test_an_empty_stop_string_is_left_out_and_the_others_stay(world: World) -> None:
    request = await asked(world, "/v1/completions", {"prompt": "hi", "stop": ["", "b", ""]})
    assert request.text.stop == ("b",)


async def test_a_value_of_the_wrong_type_is_not_neutral(world: World) -> None:
    wrong: list[dict[str, Any]] = [{"temperature": []}, {"stop": {}}, {"n": 0}, {"seed": ""}, {"tools": ""}]
    for fields in wrong:
        reply = await world.chat(**fields)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(fields))), fields


async def test_a_web_search_with_the_defaults_is_refused(world: World) -> None:
    reply = await world.chat(web_search_options={})
    assert reply.json()["error"]["param"] == "web_search_options"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_field_grammar_is_a_constraint(world: World, path: str) -> None:
    _, body = ROUTES[path]
    request = await asked(world, path, {**body, "grammar": 'root ::= "yes"'})
    assert matches(request.grammar, "yes")
    assert not matches(request.grammar, "no")
    both = await world.client.post(path, json={**body, "grammar": 'root ::= "a"', "regex": "a"})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "grammar")


async def test_other_routes_accept_neutral_values_too(world: World) -> None:
    text = {
        "prompt": "hi",
        "tools": [],
        "chat_template_kwargs": {},
        "add_generation_prompt": False,
        "chat_template": "",
    }
    for path, body in (
        ("/tokenize", text),
        ("/v1/messages/count_tokens", {"messages": HI, "tools": [], "system": "", "thinking": {}}),
    ):
        assert (await world.client.post(path, json=body)).status_code == 200, path
    assert (await world.client.post("/abort_request", json={"rid": ""})).status_code == 400
