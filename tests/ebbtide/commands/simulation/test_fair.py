"""``--schedule-policy fair`` in virtual time: eight keys chat, and a ninth sends 50 huge requests at once."""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Literal

import pytest
from msgspec.structs import replace

from ebbtide.commands.results import percentile
from ebbtide.commands.simulation.measure import Case, demand_tokens, simulate
from ebbtide.commands.simulation.mixes import MIXES, build, rate_for
from ebbtide.commands.simulation.trace import TraceRequest
from ebbtide.commands.simulation.virtual import Machine

MACHINE = Machine(memory_check="off")
HUGE = "huge"
LEAVE_S = 40.0  # the clients of the huge requests leave when all others should have ended, to save time


def chats(count: int) -> list[TraceRequest]:
    """The mix "chat" of eight keys, at half of the machine's speed."""
    rate = rate_for(MIXES["chat"], 0.5, MACHINE.cost, MACHINE.num_rows)
    requests = build(MIXES["chat"], count, 0, rate)
    return [replace(request, account=f"key {index % 8}") for index, request in enumerate(requests)]


def huge_requests(prompt_len: int, output_len: int) -> list[TraceRequest]:
    request = TraceRequest(2.0, prompt_len, output_len, account=HUGE, leaves_s=LEAVE_S)
    return [request] * 50


def p99_of_chats(requests: list[TraceRequest], policy: Literal["fcfs", "fair"], pool: int) -> float:
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    machine = with_fields(MACHINE, schedule_policy=policy)
    records = simulate(ordered, machine, Case("cost", 1.0, pool, 0.0)).run.records
    others = [record for record in records if record.request.account != HUGE]
    assert all(record.finish in ("stop", "length") for record in others)
    return percentile(sorted(record.end_s - record.request.arrival_s for record in others), 99)


@pytest.mark.parametrize(("prompt_len", "output_len"), [(5000, 300), (500, 3000)])
def test_50_huge_requests_of_one_key_delay_the_other_keys_by_less_than_a_third(
    prompt_len: int, output_len: int
) -> None:
    requests = chats(60)
    pool = demand_tokens(requests, MACHINE)
    alone = p99_of_chats(requests, "fcfs", pool)
    with_huge = p99_of_chats([*requests, *huge_requests(prompt_len, output_len)], "fair", pool)
    assert with_huge <= 1.3 * alone


def test_with_first_come_first_served_they_delay_them_for_long() -> None:
    requests = chats(20)
    pool = demand_tokens(requests, MACHINE)
    alone = p99_of_chats(requests, "fcfs", pool)
    assert p99_of_chats([*requests, *huge_requests(4000, 100)], "fcfs", pool) > 1.5 * alone
