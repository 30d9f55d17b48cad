"""Limits per caller."""

from __future__ import annotations

import pytest

from ebbtide.config import AccessConfig, LimitsConfig
from ebbtide.errors import Rejected
from ebbtide.messages import GenerateReq, SamplingParams, TextParams
from ebbtide.server.http.access import access_from
from ebbtide.server.http.auth import Caller
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest


@pytest.mark.parametrize(("asked", "granted"), [(-100, -100), (5, 5), (6, 5), (100, 5)])
def test_priority_is_capped_except_for_the_admin(asked: int, granted: int) -> None:
    access = access_from(AccessConfig())
    assert access.sender(Caller(), max_priority=5).priority(asked) == granted
    assert access.sender(Caller("a", is_admin=True), max_priority=5).priority(asked) == asked


@pytest.mark.parametrize(
    ("asked", "server", "granted"), [(None, None, None), (5, None, 5), (None, 7, 7), (5, 7, 5), (9, 7, 7)]
)
def test_the_shorter_timeout_applies(asked: float | None, server: float | None, granted: float | None) -> None:
    access = access_from(AccessConfig(), LimitsConfig(queue_timeout=3, request_timeout=server))
    result = access.sender(Caller(), timeout_s=asked)
    assert (result.queue_timeout_s, result.timeout_s) == (3, granted)


@pytest.mark.parametrize(
    ("caller", "num_open", "refused"),
    [
        (Caller("a"), 1, False),
        (Caller("a"), 2, True),
        (Caller("root", is_admin=True), 2, False),
        (Caller(), 2, False),
    ],
)
def test_open_requests_per_key_are_limited(caller: Caller, num_open: int, refused: bool) -> None:
    access = access_from(AccessConfig(), LimitsConfig(max_requests_per_key=2))
    if not refused:
        access.check_concurrency(caller, num_open)
        return
    with pytest.raises(Rejected) as error:
        access.check_concurrency(caller, num_open)
    assert (error.value.status, error.value.code, error.value.retry_after_s) == (429, "queue_full", 1)


@pytest.mark.parametrize("owner", ["", "a"])
def test_a_request_names_the_account_of_its_key(owner: str) -> None:
    sender = access_from(AccessConfig()).sender(Caller(owner))
    request = PreparedRequest([[1]], [SamplingParams(max_tokens=1)], TextParams())
    (message,) = request.messages(["r"], sender, 0.0)
    assert isinstance(message, GenerateReq)
    assert message.account == owner


def test_isolated_keys_share_no_cache() -> None:
    access = access_from(AccessConfig(isolate_keys=True))
    senders = [access.sender(Caller(owner)) for owner in ("", "a", "b")]
    spaces = [sender.namespace(asked) for sender in senders for asked in ("", "salt:x", "key:a|")]
    assert len(set(spaces)) == len(spaces) - 1, "a client without a key cannot take the place of one that has it"


def test_a_cache_salt_cannot_select_another_keys_namespace() -> None:
    access = access_from(AccessConfig(isolate_keys=True))
    target = access.sender(Caller("a")).namespace("salt:x")
    salts = (target, "x", "key:a|salt:x", "a|salt:x")
    senders = [access.sender(Caller(owner)) for owner in ("", "b")]
    assert target not in [sender.namespace(f"salt:{salt}") for salt in salts for sender in senders]


def test_without_isolation_the_cache_is_shared() -> None:
    access = access_from(AccessConfig())
    assert access.sender(Caller("a")).namespace("") == access.sender(Caller("b")).namespace("") == ""
