"""Removes from HTTP answers the values that differ from run to run, and finds differences between two answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

TIMES = frozenset(
    (
        *("created", "created_at", "completed_at", "timestamp", "time", "e2e_latency", "queue_ms", "idle_s"),
        *("gen_throughput", "last_gen_throughput", "port", "sim_script", "api_key_file"),
    )
)
# The number of tokens computed after a stop string, before the scheduler is notified, depends on timing.
POOLS = frozenset(("available", "evictable"))
COSTS = frozenset(("num_retractions", "recomputed_tokens", "total_retractions"))
DROPPED = frozenset(("date", "openai-processing-ms", "content-length", "transfer-encoding"))
IDS = re.compile(r"(?<![0-9a-f])[0-9a-f]{20,40}(?![0-9a-f])")
TEXTS = frozenset(
    ("text", "content", "reasoning", "reasoning_content", "arguments", "delta", "thinking", "partial_json")
)
# Series whose values depend only on the requests; all others depend on time.
COUNTED = re.compile(
    r"[a-z]+:(?!\w*(?:seconds|latency|generation_tokens|success))(num_aborted_requests_total|prompt_tokens_total|page_size"
    r"|max_total_num_tokens|http_responses_total|request_\w+)"
)
POLLED = re.compile(r'endpoint="(/metrics|/v1/loads|/ready)"')


class Varying:
    """Replaces values that differ between runs by names; in one answer, equal values get the same name."""

    def __init__(self, places: Mapping[str, str] | None = None, *, hides_costs: bool = False) -> None:
        self._places = places or {}
        self._ids: dict[str, str] = {}
        self._hides_costs = hides_costs
        self._hidden = TIMES | POOLS | (COSTS if hides_costs else frozenset())

    def text(self, text: str) -> str:
        """Return a text in which ids and places are replaced by names."""
        for place, name in self._places.items():
            text = text.replace(place, name)
        return IDS.sub(lambda found: self._ids.setdefault(found[0], f"<id {len(self._ids)}>"), text)

    def value(self, value: Any) -> Any:
        """Return a JSON value in which ids, places and times are replaced by names. The order of keys is kept."""
        if isinstance(value, dict):
            shown = _without_order(_without_first_counts(value))
            if self._hides_costs:
                shown.pop("ebbtide", None)
            return {self.text(key): self._field(key, inner) for key, inner in shown.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        return self.text(value) if isinstance(value, str) else value

    def headers(self, headers: list[tuple[str, str]]) -> list[list[str]]:
        """Return sorted names in lower case with their values; a value that always differs is replaced."""
        named = ((name.lower(), value) for name, value in headers)
        return sorted([name, "<varies>" if name in DROPPED else self.text(value)] for name, value in named)

    def _field(self, key: str, value: Any) -> Any:
        if key in self._hidden and isinstance(value, (int, float, str)) and not isinstance(value, bool):
            return f"<{key}>"
        return self.value(value)


def _without_first_counts(value: dict[str, Any]) -> dict[str, Any]:
    """Remove the counts from a message's first event, because they depend on timing."""
    if value.get("type") != "message_start":
        return value
    usage = value["message"]["usage"]
    counts = {key: count for key, count in usage.items() if key not in ("output_tokens_details", "ebbtide")}
    return {**value, "message": {**value["message"], "usage": counts}}


def _without_order(value: dict[str, Any]) -> dict[str, Any]:
    """Sort the schemas of the API's description, because their order depends on hashes."""
    schemas = value.get("schemas")
    return {**value, "schemas": dict(sorted(schemas.items()))} if isinstance(schemas, dict) else dict(value)


def body_form(body: bytes, kind: str, varying: Varying) -> Any:
    """Return the body: JSON as its value and its encoding, a stream as its events, anything else as text."""
    text = body.decode("utf-8", "backslashreplace")
    if not body:
        return {"text": ""}
    if kind.startswith("application/json"):
        value = json.loads(text)
        return {"json": varying.value(value), "written": _written(value, text)}
    if kind.startswith("text/event-stream"):
        return {"events": [varying.value(event) for event in merged(events_of(text))]}
    if kind.startswith("text/plain") and "# HELP" in text:
        return {"series": _series([varying.text(line) for line in text.splitlines() if not POLLED.search(line)])}
    return {"text": varying.text(text)}


def _written(value: Any, text: str) -> str:
    for name, is_ascii in (("ascii", True), ("utf-8", False)):
        if json.dumps(value, separators=(",", ":"), ensure_ascii=is_ascii) == text:
            return name
    return "otherwise"


def _series(lines: list[str]) -> list[str]:
    """Return the lines of /metrics with each family's samples sorted by name, because some orders depend on hashes."""
    shown: list[str] = []
    for is_text, run in groupby(lines, lambda line: line.startswith("#")):
        shown += sorted(line if is_text else _sample(line) for line in run)
    return shown


def _sample(line: str) -> str:
    return line if COUNTED.match(line) else f"{line.rpartition(' ')[0]} <value>"


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream, without the comments that keep the connection alive."""
    events = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            fields = dict(line.partition(": ")[::2] for line in lines)
            data: Any = fields.pop("data", None)
            events.append({**fields, "data": json.loads(data) if data and data != "[DONE]" else data})
    return events


def merged(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join events that a fast reader receives one by one and a slow reader as one event.

    The order of the events of different choices depends on timing: an event is joined to the last one of its choice.
    """
    result: list[dict[str, Any]] = []
    for at, event in enumerate(events):
        data = event["data"]
        if isinstance(data, dict) and "sequence_number" in data:
            data["sequence_number"] = "in order" if data["sequence_number"] == at else f"wrong at {at}"
        earlier = _last_of_choice(result, data)
        joined = None if earlier is None else _joined_events(result[earlier], event)
        if earlier is None or joined is None:
            result.append(event)
        else:
            result[earlier] = joined
    return _sorted_by_choice(result)


def _choice_of(data: Any) -> int | None:
    if not isinstance(data, dict) or "type" in data:
        return None
    if len(data.get("choices") or ()) == 1:
        return int(data["choices"][0]["index"])
    return data.get("index")


def _last_of_choice(events: list[dict[str, Any]], data: Any) -> int | None:
    choice = _choice_of(data)
    for at in range(len(events) - 1, -1, -1):
        other = _choice_of(events[at]["data"])
        if other == choice:
            return at
        if other is None or choice is None:
            break
    return None


def _sorted_by_choice(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort each run of events by choice. An event without a choice ends a run and keeps its place."""
    result: list[dict[str, Any]] = []
    run: list[dict[str, Any]] = []
    for event in [*events, {"data": None}]:
        if _choice_of(event["data"]) is None:
            result += [*sorted(run, key=lambda one: _choice_of(one["data"]) or 0), event]
            run = []
        else:
            run.append(event)
    return result[:-1]


def _joined_events(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any] | None:
    one, two = a["data"], b["data"]
    if not isinstance(one, dict) or not isinstance(two, dict) or a.get("event") != b.get("event"):
        return None
    if "meta_info" in one and "meta_info" in two:
        return {**a, "data": _joined_generate(one, two)}
    return {**a, "data": _joined(one, two)} if _joinable(one, two) else None


def _joinable(a: dict[str, Any], b: dict[str, Any]) -> bool:
    if "type" in a or "type" in b:
        kinds = (a.get("type"), (a.get("delta") or {}).get("type") if isinstance(a.get("delta"), dict) else None)
        same = kinds == (b.get("type"), b["delta"].get("type") if isinstance(b.get("delta"), dict) else None)
        return same and str(kinds[0]).endswith("delta") and kinds[0] != "message_delta"
    if not (a.get("choices") and b.get("choices")):
        return False
    one, two = a["choices"][0], b["choices"][0]
    if "delta" not in one:
        return one.get("finish_reason") is None
    return one["finish_reason"] is two["finish_reason"] is None and _said(one["delta"]) == _said(two["delta"]) != None  # noqa: E711


def _said(delta: dict[str, Any]) -> Any:
    """Return the kind of a chat's delta; None for the first delta and for the start of a call."""
    calls = delta.get("tool_calls")
    if "role" in delta or (calls and "id" in calls[0]):
        return None
    return ("call", calls[0]["index"]) if calls else tuple(delta) or None


def _joined(a: Any, b: Any, key: str = "") -> Any:
    if key in ("usage", "index", "output_index", "content_index", "sequence_number", "created") or a is None:
        return a if b is None else b
    if isinstance(a, dict) and isinstance(b, dict):
        both = {name: _joined(a.get(name), b.get(name), name) for name in {**a, **b}}
        return both
    if isinstance(a, list) and isinstance(b, list):
        return [_joined(a[0], b[0])] if key in ("choices", "tool_calls") else a + b
    return a + b if key in TEXTS and isinstance(b, str) else (a if b is None else b)


def _joined_generate(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Join two events of /generate. Each has the whole answer so far or, with a flag, only the new part."""
    if b["output_ids"][: len(a["output_ids"])] == a["output_ids"] and b["text"].startswith(a["text"]):
        return b
    meta = {**a["meta_info"], **b["meta_info"]}
    for name, value in meta.items():
        if name.startswith("output_"):
            meta[name] = a["meta_info"].get(name, []) + value
    return {**b, "text": a["text"] + b["text"], "output_ids": a["output_ids"] + b["output_ids"], "meta_info": meta}


def differences(one: Any, two: Any, place: str = "") -> Iterator[str]:
    """Yield descriptions of the differences between two JSON values, including the order of keys."""
    if isinstance(one, dict) and isinstance(two, dict):
        if list(one) != list(two):
            yield f"{place}: keys {list(one)} != {list(two)}"
        for key in one.keys() & two.keys():
            yield from differences(one[key], two[key], f"{place}.{key}")
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for at, pair in enumerate(zip(one, two, strict=True)):
            yield from differences(*pair, f"{place}[{at}]")
    elif one != two or type(one) is not type(two):
        yield f"{place}: {_short(one)} != {_short(two)}"


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:300]


def without_messages(value: Any) -> Any:
    """Return the value without the texts of errors, of the API's description and of metrics."""
    if isinstance(value, dict):
        texts = ("message", "summary", "description")
        return {
            key: "<text>" if key in texts and isinstance(inner, str) else without_messages(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [
            without_messages(inner) for inner in value if not (isinstance(inner, str) and inner.startswith("# HELP"))
        ]
    return value
