"""A recording of answers: the kept and the omitted parts, and the differences that are found."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("answer_forms")


@pytest.fixture
def recorder(forms: Any) -> Any:
    return importlib.import_module("record_answers")


def stream(*chunks: Any) -> str:
    """Chunks as server-sent events."""
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + ": keep-alive\n\ndata: [DONE]\n\n"


def chunk(text: str, *, index: int = 0, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": text, "logprobs": None, "finish_reason": finish, **more}]}


def test_ids_times_and_places_get_names_and_the_same_id_the_same(forms: Any) -> None:
    varying = forms.Varying({"/t/x": "<dir>"})
    body = {"id": "cmpl-" + "a" * 32, "created": 5, "model": "/t/x/m", "usage": {"total_tokens": 3}, "again": "a" * 32}
    assert varying.value(body) == {
        "id": "cmpl-<id 0>",
        "created": "<created>",
        "model": "<dir>/m",
        "usage": {"total_tokens": 3},
        "again": "<id 0>",
    }
    assert varying.headers([("X-Request-Id", "a" * 32), ("Date", "now")]) == [
        ["date", "<varies>"],
        ["x-request-id", "<id 0>"],
    ]


def test_a_stream_is_equal_for_any_number_of_pieces(forms: Any) -> None:
    one_by_one = stream(chunk("a", token_ids=[1]), chunk("b", token_ids=[2]), chunk("c", token_ids=[3], finish="stop"))
    at_once = stream(chunk("abc", token_ids=[1, 2, 3], finish="stop"))
    assert forms.merged(forms.events_of(one_by_one)) == forms.merged(forms.events_of(at_once))


def test_choices_may_come_in_any_order_side_by_side(forms: Any) -> None:
    one = stream(chunk("a"), chunk("x", index=1), chunk("b"), chunk("y", index=1))
    other = stream(chunk("x", index=1), chunk("ab"), chunk("y", index=1))
    assert forms.merged(forms.events_of(one)) == forms.merged(forms.events_of(other))


@pytest.mark.parametrize("other", [[chunk("ab"), chunk("d")], [chunk("ab"), {"error": {}}], [{**chunk("abc"), "x": 1}]])
def test_another_text_and_another_end_stay_different(forms: Any, other: list[Any]) -> None:
    whole = forms.merged(forms.events_of(stream(chunk("ab"), chunk("c"))))
    assert forms.merged(forms.events_of(stream(*other))) != whole


def test_deltas_of_a_chat_join_with_their_own_kind_only(forms: Any) -> None:
    parts = [{"role": "assistant", "content": ""}, {"reasoning": "a"}, {"reasoning": "b"}, {"content": "c"}, {}]
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": part, "finish_reason": None}]} for part in parts]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    said = [event["data"] for event in forms.merged(forms.events_of(stream(*chunks)))]
    assert [event["choices"][0]["delta"] for event in said[:-1]] == [parts[0], {"reasoning": "ab"}, *parts[3:]]


def test_the_way_json_is_written_counts(forms: Any) -> None:
    body = {"a": "é"}
    written = [json.dumps(body, separators=(",", ":"), ensure_ascii=ascii).encode() for ascii in (True, False)]
    kinds = [forms.body_form(data, "application/json", forms.Varying())["written"] for data in written]
    assert kinds == ["ascii", "utf-8"]


def test_differences_name_their_place(forms: Any) -> None:
    assert list(forms.differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]})) == []
    assert list(forms.differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]})) == [".a[1].b: 2 != 3"]
    assert len(list(forms.differences({"a": 1, "b": 2}, {"b": 2, "a": 1}))) == 1  # the order of keys
    assert list(forms.differences(1, 1.0)) == [": 1 != 1.0"]


def test_messages_can_be_ignored_and_codes_cannot(recorder: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def recorded(message: str, code: str) -> Any:
        return {"main": {"ask": {"status": 400, "json": {"error": {"message": message, "code": code}}}}}

    one = recorded("old", "a")
    assert recorder.report(one, recorded("new", "a"), ignores_messages=True) == 0
    assert recorder.report(one, recorded("new", "a"), ignores_messages=False) == 1
    assert recorder.report(one, recorded("old", "b"), ignores_messages=True) == 1
    assert '[main] ask.json.error.code: "a" != "b"' in capsys.readouterr().out


def test_a_route_without_a_request_is_named(recorder: Any) -> None:
    paths: Any = {"/v1/models/{model_id}": {"get": {}}, "/health": {"get": {}, "put": {}}, "/new/{x}": {"get": {}}}
    answers = {"main": {"GET /openapi.json": {"json": {"paths": paths}}}}
    answers["main"]["GET /openapi.json"]["json"]["paths"]["/health"].pop("put")
    assert recorder.unasked(answers) == ["GET /new/{x}"]


def test_the_recorder_does_not_import_ebbtide(recorder: Any) -> None:
    for path in (*TOOLS.glob("record*.py"), *TOOLS.glob("answer*.py")):
        assert not re.search(r"^\s*(import|from) ebbtide", path.read_text(), re.MULTILINE), path


def test_every_request_of_a_daemon_has_its_own_name(recorder: Any) -> None:
    for setup in [*recorder.setups(), recorder.real_setup()]:
        names = [ask.name for ask in setup.asks]
        assert len(set(names)) == len(names)
