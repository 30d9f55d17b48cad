"""The charges and reservations of admission, one rule per test. Pages of 4 tokens, a pool of 16 pages."""

from __future__ import annotations

import pytest

from ebbtide.scheduler.batching.admission import Admission, Verdict
from ebbtide.scheduler.batching.new_token_ratio import ReportedRatio
from ebbtide.scheduler.batching.output_lengths import OutputLengths
from ebbtide.scheduler.memory.pool import Pool
from ebbtide.scheduler.request import Request

from ..make import pool, request, run


def admission(
    pages: Pool, running: list[Request], lengths: OutputLengths | None = None, *, risk: float = 0.5
) -> Admission:
    """With a risk of one half, the rule reserves the expected demand and nothing for its uncertainty."""
    rule = Admission(pages, ReportedRatio(), lengths or OutputLengths(), risk=risk)
    for req in running:
        rule.charge(req)
    rule.start_step(running)
    return rule


def verdict(pages: Pool, running: list[Request], req: Request) -> Verdict:
    return admission(pages, running).evaluate(req).verdict


def lengths_of(*outputs: int) -> OutputLengths:
    lengths = OutputLengths()
    for length in outputs:
        lengths.add(length)
    return lengths


def test_a_request_alone_needs_room_for_its_known_tokens_only() -> None:
    pages = pool(16)
    assert verdict(pages, [], request(prompt=64, max_tokens=10_000)) is Verdict.ADMIT


def test_a_request_larger_than_the_pool_never_fits() -> None:
    assert verdict(pool(16), [], request(prompt=60, outputs=5)) is Verdict.NEVER_FITS


def test_a_request_waits_while_the_pool_is_in_use_even_if_none_is_running() -> None:
    pages = pool(16)
    run(pages, request("held", prompt=40))
    assert verdict(pages, [], request("b", prompt=40, arrival=1)) is Verdict.WAIT


@pytest.mark.parametrize(("prompt", "expected"), [(47, Verdict.ADMIT), (48, Verdict.WAIT)])
def test_a_candidate_needs_room_for_its_known_tokens_and_one_more(prompt: int, expected: Verdict) -> None:
    """Both requests end before the first horizon. The running one holds 4 of 16 pages."""
    pages = pool(16)
    runs = run(pages, request("a", prompt=16, max_tokens=8), computed=16)
    assert verdict(pages, [runs], request("b", prompt=prompt, max_tokens=8, arrival=1)) is expected


def test_the_reserved_output_follows_the_lengths_of_earlier_outputs() -> None:
    """Four requests of 100 tokens each, in a pool of 500 tokens: a fifth one fits only if outputs are short."""
    pages = pool(125)
    running = [run(pages, request(f"r{n}", prompt=40, max_tokens=1000, arrival=n), computed=40) for n in range(4)]
    candidate = request("b", prompt=40, max_tokens=1000, arrival=9)
    long, short = lengths_of(*[150] * 2000), lengths_of(*[20] * 2000)
    assert admission(pages, running, long).evaluate(candidate).verdict is Verdict.WAIT
    assert admission(pages, running, short).evaluate(candidate).verdict is Verdict.ADMIT


def test_a_smaller_risk_reserves_more() -> None:
    pages = pool(200)
    running = [run(pages, request(f"r{n}", prompt=40, max_tokens=1000, arrival=n), computed=40) for n in range(8)]
    lengths = lengths_of(*[20, 40, 300] * 300)
    ratios = []
    for risk in (0.9, 0.5, 0.1, 0.001):
        ratio = ReportedRatio()
        rule = Admission(pages, ratio, lengths, risk=risk)
        for req in running:
            rule.charge(req)
        rule.start_step(running)
        rule.evaluate(request("b", prompt=40, max_tokens=1000, arrival=9))
        ratios.append(ratio.value)
    assert ratios == sorted(ratios)
    assert 0 < ratios[1] < ratios[-1] < 1


@pytest.mark.parametrize("risk", [0.0, 1e-300, 1e-20, 1 - 1e-16, 1.0])
def test_no_risk_is_too_small_or_too_large(risk: float) -> None:
    pages = pool(16)
    runs = run(pages, request("a", prompt=8, max_tokens=4), computed=8)
    rule = admission(pages, [runs], risk=risk)
    assert rule.evaluate(request("b", prompt=8, max_tokens=4, arrival=1)).verdict is Verdict.ADMIT


def test_a_request_that_left_reserves_nothing() -> None:
    pages = pool(16)
    runs = run(pages, request("a", prompt=30, max_tokens=2000), computed=30)
    rule = admission(pages, [runs])
    candidate = request("b", prompt=24, max_tokens=2000, arrival=1)
    assert rule.evaluate(candidate).verdict is Verdict.WAIT
    assert rule.evaluate(candidate, without=[runs]).verdict is Verdict.ADMIT
    rule.left(runs)
    pages.release_kv_cache(runs, is_insert=False)
    assert rule.evaluate(candidate).verdict is Verdict.ADMIT


def test_a_request_that_is_about_to_end_frees_memory_for_others() -> None:
    """One of 15 pages is free, and a request with 8 more output tokens needs two."""
    for rest, room in ((1000, False), (3, True)):
        pages = pool(15)
        grows = run(pages, request("a", prompt=20, max_tokens=1000), computed=20)
        other = run(pages, request("b", prompt=36, max_tokens=rest, arrival=1), computed=36)
        assert admission(pages, [grows, other], lengths_of(*[2000] * 500)).expects_room() is room


def test_the_rest_of_a_running_prefill_is_reserved() -> None:
    pages = pool(16)
    runs = run(pages, request("a", prompt=48, max_tokens=1), computed=4)
    assert verdict(pages, [runs], request("b", prompt=16, max_tokens=1, arrival=1)) is Verdict.ADMIT
    assert verdict(pages, [runs], request("b", prompt=20, max_tokens=1, arrival=1)) is Verdict.WAIT


def test_pages_that_running_requests_lock_already_are_not_charged_again() -> None:
    pages = pool(16)
    runs = run(pages, request("a", prompt=49, max_tokens=1), computed=48)
    pages.publish(runs, 48)
    twin = request("b", prompt=49, max_tokens=1, arrival=0)
    assert verdict(pages, [runs], twin) is Verdict.ADMIT
    assert verdict(pages, [runs], request("c", prompt=49, max_tokens=1, arrival=1)) is Verdict.WAIT


def test_unused_cached_pages_count_as_available() -> None:
    pages = pool(16)
    first = run(pages, request("a", prompt=61, max_tokens=1), computed=60)
    pages.release_kv_cache(first, is_insert=True)
    runs = run(pages, request("b", prompt=5, max_tokens=1, arrival=1))
    assert verdict(pages, [runs], request("c", prompt=50, max_tokens=1, arrival=2)) is Verdict.ADMIT


def protected(rid: str, *, prompt: int, max_tokens: int, arrival: int) -> Request:
    return request(rid, prompt=prompt, max_tokens=max_tokens, arrival=arrival, protected=True)


def test_protected_needs_never_add_up_to_more_than_the_pool() -> None:
    pages = pool(16)
    runs = run(pages, protected("a", prompt=8, max_tokens=25, arrival=0))  # needs 8 of 16 pages
    assert verdict(pages, [runs], protected("b", prompt=8, max_tokens=25, arrival=1)) is Verdict.ADMIT
    assert verdict(pages, [runs], protected("b", prompt=8, max_tokens=26, arrival=1)) is Verdict.SKIP


def test_a_request_protected_by_its_retraction_does_not_reduce_the_reservations_of_others() -> None:
    pages = pool(16)
    runs = run(pages, protected("a", prompt=8, max_tokens=25, arrival=0))  # needs 8 of 16 pages
    victim = run(pages, request("v", prompt=8, max_tokens=25, arrival=1))
    rule = admission(pages, [runs, victim])
    victim.protected = True
    rule.left(victim)
    assert rule.evaluate(protected("b", prompt=8, max_tokens=25, arrival=2)).verdict is Verdict.ADMIT
    assert rule.evaluate(protected("c", prompt=8, max_tokens=26, arrival=3)).verdict is Verdict.SKIP


def test_a_protected_request_that_cannot_start_is_passed_by_unprotected_ones_only() -> None:
    pages = pool(16)
    rule = admission(pages, [run(pages, protected("a", prompt=8, max_tokens=25, arrival=0))])
    assert rule.evaluate(protected("big", prompt=8, max_tokens=50, arrival=1)).verdict is Verdict.SKIP
    assert rule.evaluate(protected("small", prompt=1, max_tokens=2, arrival=2)).verdict is Verdict.SKIP
    assert rule.evaluate(request("young", prompt=4, max_tokens=1, arrival=3)).verdict is Verdict.ADMIT


def test_a_protected_request_that_only_lacks_room_now_holds_back_all_others() -> None:
    pages = pool(16)
    runs = run(pages, request("a", prompt=50, max_tokens=500))
    assert verdict(pages, [runs], protected("b", prompt=20, max_tokens=4, arrival=1)) is Verdict.WAIT


def test_the_remaining_need_of_a_protected_request_is_reserved() -> None:
    pages = pool(16)
    runs = run(pages, protected("a", prompt=8, max_tokens=41, arrival=0))  # needs 12 pages, holds 2
    assert verdict(pages, [runs], request("b", prompt=15, max_tokens=1, arrival=1)) is Verdict.ADMIT
    assert verdict(pages, [runs], request("b", prompt=17, max_tokens=1, arrival=1)) is Verdict.WAIT
