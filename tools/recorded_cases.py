"""The types of the tables of recorded requests: one request, and one daemon with the requests that it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KEY = "key-one"
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        name: Unique within its daemon.
        body: An object is sent as JSON, bytes as they are.
        raw: The whole request as bytes, in place of everything else.
        in_background: The next request is sent before this one is answered.
        load: Requests that the server must hold before the next one is sent.
        settles: Wait until every earlier request has ended.
        ending_only: Record the last event only, because the place of the end depends on timing.
        exact: Record the bytes of the stream, because its events do not depend on timing.
    """

    name: str
    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes = b""
    in_background: bool = False
    load: int = 0
    settles: bool = False
    ending_only: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Setup:
    """One daemon.

    Attributes:
        flags: "{dir}" stands for a folder that has script.json and keys.txt.
        script: The simulated model's answers by prompt prefix.
        headers: Sent with every request that the recorder itself makes, such as those for the load.
    """

    name: str
    flags: tuple[str, ...]
    asks: tuple[Ask, ...]
    script: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str = "sim"
    root: str = ""


def get(path: str, **more: Any) -> Ask:
    """A GET."""
    return Ask(more.pop("name", f"GET {path}"), "GET", path, **more)


def post(name: str, path: str, body: Any, **more: Any) -> Ask:
    """A POST of JSON."""
    return Ask(f"{path} {name}", "POST", path, body, JSON | more.pop("headers", {}), **more)


def cases(path: str, base: Mapping[str, Any], table: Mapping[str, Mapping[str, Any]], **more: Any) -> list[Ask]:
    """Return one request per line of ``table``, whose fields override the fields of ``base``."""
    return [post(name, path, {**base, **fields}, **more) for name, fields in table.items()]


def whole_and_streamed(path: str, base: Mapping[str, Any], table: Mapping[str, Mapping[str, Any]]) -> list[Ask]:
    """Each line of ``table`` without and with a stream."""
    streamed = {f"{name} (stream)": {**fields, "stream": True} for name, fields in table.items()}
    return [*cases(path, base, table), *cases(path, base, streamed)]


def each_value(path: str, base: Mapping[str, Any], values: Mapping[str, list[Any]]) -> list[Ask]:
    """One request for each value of each field."""
    return [
        post(f"{name}={value!r:.40} #{at}", path, {**base, name: value})
        for name, listed in values.items()
        for at, value in enumerate(listed)
    ]


def bearer(key: str) -> dict[str, str]:
    """The header with an API key."""
    return {"authorization": f"Bearer {key}"}
