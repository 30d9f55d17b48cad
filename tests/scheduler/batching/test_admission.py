"""The charges and promises of admission, one rule a test. Pages of 4 tokens, a pool of 16 pages."""

from __future__ import annotations

import pytest

from ebbtide.scheduler.batching.admission import Admission, Verdict
from ebbtide.scheduler.batching.new_token_ratio import NewTokenRatio, OutputLengths
from ebbtide.scheduler.memory.pool import Pool
from ebbtide.scheduler.request import Request

from ..make import pool, request, run


def admission(pages: Pool, running: list[Request], ratio: float = 0.5) -> Admission:
    controller = NewTokenRatio()
    controller.value = ratio
    rule = Admission(pages, controller, OutputLengths())
    rule.start_step(running)
    return rule


def verdict(pages: Pool, running: list[Request], req: Request, ratio: float = 0.5) -> Verdict:
    return admission(pages, running, ratio).evaluate(req).verdict


def test_alone_it_needs_room_for_its_known_tokens_only() -> None:
    pages = pool(16)
    assert verdict(pages, [], request(prompt=64, max_tokens=10_000)) is Verdict.ADMIT


def test_who_has_outgrown_the_pool_is_hopeless() -> None:
    assert verdict(pool(16), [], request(prompt=60, outputs=5)) is Verdict.NEVER_FITS


def test_alone_it_waits_while_something_else_holds_the_pool() -> None:
    pages = pool(16)
    run(pages, request("held", prompt=40))
    assert verdict(pages, [], request("b", prompt=40, arrival=1)) is Verdict.WAIT


@pytest.mark.parametrize(("prompt", "expected"), [(39, Verdict.ADMIT), (40, Verdict.WAIT)])
def test_a_candidate_is_charged_its_known_tokens_one_more_and_a_share_of_its_output(
    prompt: int, expected: Verdict
) -> None:
    """The running one holds 4 pages and is charged half of 8 more tokens, the candidate half of 8: 48 - 4 - 4 = 40."""
    pages = pool(16)
    runs = run(pages, request("a", prompt=16, max_tokens=8), computed=16)
    assert verdict(pages, [runs], request("b", prompt=prompt, max_tokens=8, arrival=1)) is expected


def test_the_rest_of_a_running_prefill_is_reserved() -> None:
    pages = pool(16)
    runs = run(pages, request("a", prompt=48, max_tokens=1), computed=4)
    assert verdict(pages, [runs], request("b", prompt=16, max_tokens=1, arrival=1), ratio=0.0) is Verdict.ADMIT
    assert verdict(pages, [runs], request("b", prompt=20, max_tokens=1, arrival=1), ratio=0.0) is Verdict.WAIT


def test_pages_that_running_requests_lock_already_are_not_charged_again() -> None:
    pages = pool(16)
    runs = run(pages, request("a", prompt=49, max_tokens=1), computed=48)
    pages.publish(runs, 48)
    twin = request("b", prompt=49, max_tokens=1, arrival=0)
    assert verdict(pages, [runs], twin, ratio=0.0) is Verdict.ADMIT
    assert verdict(pages, [runs], request("c", prompt=49, max_tokens=1, arrival=1), ratio=0.0) is Verdict.WAIT


def test_unused_cached_pages_count_as_available() -> None:
    pages = pool(16)
    first = run(pages, request("a", prompt=61, max_tokens=1), computed=60)
    pages.release_kv_cache(first, is_insert=True)
    runs = run(pages, request("b", prompt=5, max_tokens=1, arrival=1))
    assert verdict(pages, [runs], request("c", prompt=50, max_tokens=1, arrival=2), ratio=0.0) is Verdict.ADMIT


def test_an_absurd_max_tokens_is_charged_by_what_others_finished_with() -> None:
    pages, lengths, ratio = pool(1000), OutputLengths(), NewTokenRatio()
    for _ in range(20):
        lengths.add(100)
    ratio.value = 1.0
    rule = Admission(pages, ratio, lengths)
    runs = run(pages, request("a", prompt=1, max_tokens=1_000_000), computed=1)
    rule.start_step([runs])
    assert rule.evaluate(request("b", prompt=1, max_tokens=1_000_000, arrival=1)).verdict is Verdict.ADMIT


def protected(rid: str, *, prompt: int, max_tokens: int, arrival: int) -> Request:
    return request(rid, prompt=prompt, max_tokens=max_tokens, arrival=arrival, protected=True)


def test_protected_needs_never_add_up_to_more_than_the_pool() -> None:
    pages = pool(16)
    runs = run(pages, protected("a", prompt=8, max_tokens=25, arrival=0))  # needs 8 of 16 pages
    assert verdict(pages, [runs], protected("b", prompt=8, max_tokens=25, arrival=1)) is Verdict.ADMIT
    assert verdict(pages, [runs], protected("b", prompt=8, max_tokens=26, arrival=1)) is Verdict.SKIP


def test_a_protected_request_that_cannot_start_is_passed_by_unprotected_ones_only() -> None:
    pages = pool(16)
    rule = admission(pages, [run(pages, protected("a", prompt=8, max_tokens=25, arrival=0))], ratio=0.0)
    assert rule.evaluate(protected("big", prompt=8, max_tokens=50, arrival=1)).verdict is Verdict.SKIP
    assert rule.evaluate(protected("small", prompt=1, max_tokens=2, arrival=2)).verdict is Verdict.SKIP
    assert rule.evaluate(request("young", prompt=4, max_tokens=1, arrival=3)).verdict is Verdict.ADMIT


def test_a_protected_request_that_only_lacks_room_now_holds_back_all_others() -> None:
    pages = pool(16)
    runs = run(pages, request("a", prompt=50, max_tokens=500))
    assert verdict(pages, [runs], protected("b", prompt=20, max_tokens=4, arrival=1)) is Verdict.WAIT


def test_what_a_protected_request_still_needs_is_kept_for_it() -> None:
    pages = pool(16)
    runs = run(pages, protected("a", prompt=8, max_tokens=41, arrival=0))  # needs 12 pages, holds 2
    assert verdict(pages, [runs], request("b", prompt=15, max_tokens=1, arrival=1), ratio=0.0) is Verdict.ADMIT
    assert verdict(pages, [runs], request("b", prompt=17, max_tokens=1, arrival=1), ratio=0.0) is Verdict.WAIT
