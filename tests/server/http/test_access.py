"""What a caller may have of the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebbtide.config import AccessConfig, LimitsConfig
from ebbtide.errors import Rejected
from ebbtide.messages import TextParams
from ebbtide.server.http.access import access_from
from ebbtide.server.http.auth import Caller
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest


def prepared(priority: int = 0, namespace: str = "") -> PreparedRequest:
    return PreparedRequest(prompts=[], sampling=[], text=TextParams(), priority=priority, namespace=namespace)


@pytest.mark.parametrize(("asked", "apply_limits"), [(-100, -100), (5, 5), (6, 5), (100, 5)])
def test_priority_is_cut_for_all_but_the_admin(asked: int, apply_limits: int) -> None:
    access = access_from(AccessConfig())
    assert access.apply_limits(prepared(asked), Caller(), 5).priority == apply_limits
    assert access.apply_limits(prepared(asked), Caller("a", is_admin=True), 5).priority == asked


@pytest.mark.parametrize(
    ("asked", "server", "apply_limits"), [(None, None, None), (5, None, 5), (None, 7, 7), (5, 7, 5), (9, 7, 7)]
)
def test_the_shorter_time_limit_holds(asked: float | None, server: float | None, apply_limits: float | None) -> None:
    access = access_from(AccessConfig(), LimitsConfig(queue_timeout=3, request_timeout=server))
    result = access.apply_limits(replace(prepared(), timeout_s=asked), Caller(), 0)
    assert (result.queue_timeout_s, result.timeout_s) == (3, apply_limits)


@pytest.mark.parametrize(
    ("caller", "num_open", "refused"),
    [
        (Caller("a"), 1, False),
        (Caller("a"), 2, True),
        (Caller("root", is_admin=True), 2, False),
        (Caller(), 2, False),
    ],
)
def test_a_key_has_only_so_many_requests_open(caller: Caller, num_open: int, refused: bool) -> None:
    access = access_from(AccessConfig(), LimitsConfig(max_requests_per_key=2))
    if not refused:
        access.check_concurrency(caller, num_open)
        return
    with pytest.raises(Rejected) as error:
        access.check_concurrency(caller, num_open)
    assert (error.value.status, error.value.code, error.value.retry_after_s) == (429, "queue_full", 1)


def test_isolated_keys_share_no_part_of_the_cache() -> None:
    access = access_from(AccessConfig(isolate_keys=True))
    spaces = [access.namespace(asked, Caller(owner)) for owner in ("", "a", "b") for asked in ("", "salt:x", "key:a|")]
    assert len(set(spaces)) == len(spaces) - 1, "a client without a key cannot take the place of one that has it"


def test_a_salt_cannot_name_another_key_s_part() -> None:
    access = access_from(AccessConfig(isolate_keys=True))
    target = access.namespace("salt:x", Caller("a"))
    salts = (target, "x", "key:a|salt:x", "a|salt:x")
    assert target not in [access.namespace(f"salt:{salt}", Caller(owner)) for salt in salts for owner in ("", "b")]


def test_without_isolation_the_cache_is_shared() -> None:
    access = access_from(AccessConfig())
    assert access.namespace("", Caller("a")) == access.namespace("", Caller("b")) == ""
