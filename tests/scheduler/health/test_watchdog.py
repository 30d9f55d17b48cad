"""The watchdog on a fake clock: every stall is detected in time."""

from __future__ import annotations

from dataclasses import replace

from ebbtide.messages import AbortReq, GenerateReq
from ebbtide.scheduler.retraction import RetractReason

from ..world import Shape, greedy, text
from .watchdog_bench import Bench, NeverAdmits, Somebody, in_time


def test_a_queue_head_that_never_fits_is_detected() -> None:
    bench = Bench()
    bench.world.allocator.take(16, Somebody())
    bench.generate("a")
    in_time(bench)
    assert "waits: a: needs 1 pages and 0 are usable" in bench.dumps[0]


def test_a_lost_wake_up_is_detected() -> None:
    bench = Bench()
    bench.generate("a")
    bench.world.receive()
    (req,) = bench.scheduler.state.waiting
    bench.scheduler.state.waiting.remove(req)
    bench.loop.work_arrived(bench.now)
    in_time(bench)
    assert "1 open requests" in bench.dumps[0]
    assert "queue of 0" in bench.dumps[0]


def test_a_forward_that_never_returns_is_detected() -> None:
    bench = Bench()
    bench.generate("a", max_tokens=40)
    for _ in range(5):
        bench.turn()
    plan = bench.scheduler.next_step(bench.now)
    assert plan is not None
    bench.loop.step_planned(bench.scheduler, plan, bench.now)
    in_time(bench, lambda: bench.sleep(1.0))


def test_a_first_forward_that_never_returns_is_detected_with_its_request_in_the_dump() -> None:
    bench = Bench()
    bench.generate("first")
    bench.loop.work_arrived(bench.now)
    bench.world.receive()
    plan = bench.scheduler.next_step(bench.now)
    assert plan is not None
    bench.loop.step_planned(bench.scheduler, plan, bench.now)
    in_time(bench, lambda: bench.sleep(1.0))
    assert "first row 0 prompt 4" in bench.dumps[0]
    assert "step 0 (row:start+tokens): 0:0+4" in bench.dumps[0]


def test_a_loop_that_hangs_before_planning_is_detected() -> None:
    bench = Bench()
    bench.turn()
    bench.loop.work_arrived(bench.now)
    in_time(bench, lambda: bench.sleep(1.0))


def test_results_that_are_never_collected_are_detected() -> None:
    bench = Bench()
    bench.generate("a")
    bench.settles = False
    in_time(bench)


def test_retract_thrash_is_detected_while_forwards_continue() -> None:
    bench = Bench(Shape(num_pages=16, page_size=4, num_rows=4, chunk=8, cache=False))
    bench.generate("a", prompt="x" * 50)
    state, retractor = bench.scheduler.state, bench.scheduler.planner.retractor

    def thrash() -> None:
        bench.turn()
        for req in list(state.running):
            if req.num_confirmed >= 16:
                retractor.retract([req], RetractReason.TEST, bench.now)

    for _ in range(3):
        thrash()  # reaching this length for the first time is progress
    in_time(bench, thrash)
    assert bench.loop.status.forward_ct > 100


def test_stalled_loading_is_detected_at_its_own_timeout() -> None:
    bench = Bench()
    bench.loop.loading_started("weights")
    assert 100.0 <= bench.seconds_to_the_end(lambda: bench.sleep(1.0)) <= 110.0
    assert "phase loading: weights" in bench.dumps[0]


def test_leaked_rows_are_detected() -> None:
    bench = Bench()
    bench.scheduler.state.free_rows.clear()
    bench.generate("a")
    in_time(bench)
    assert "waits: a: no free row, 0 running" in bench.dumps[0]


def test_admission_that_always_waits_is_detected() -> None:
    bench = Bench()
    planner = bench.scheduler.planner
    bench.scheduler.planner = replace(planner, admitter=replace(planner.admitter, admission=NeverAdmits()))
    bench.generate("a")
    in_time(bench)
    assert "a: needs 1 of 16 usable pages but is not admitted" in bench.dumps[0]


def test_sibling_choices_that_wait_forever_are_detected() -> None:
    bench = Bench()
    bench.world.send(GenerateReq(rids=("a", "b"), prompt=text("tide"), sampling=greedy(4, ignore_eos=True)))
    bench.world.receive()
    bench.loop.work_arrived(bench.now)
    bench.scheduler.state.requests["a"].sibling_choices.clear()
    while "a" in bench.scheduler.state.requests:
        bench.turn()
    in_time(bench)


def test_client_aborts_and_retries_do_not_hide_a_stall() -> None:
    bench = Bench()
    bench.world.allocator.take(16, Somebody())
    bench.generate("0")
    number = 0

    def come_and_go() -> None:
        nonlocal number
        bench.turn()
        number += 1
        bench.generate(str(number))
        bench.world.send(AbortReq(str(number - 1), "client"))

    in_time(bench, come_and_go)


def test_rejections_do_not_hide_a_stall() -> None:
    bench = Bench(Shape(num_pages=16, page_size=4, num_rows=1, max_queued=1))
    bench.world.allocator.take(16, Somebody())
    for number in range(3):
        bench.generate(str(number))

    def refuse() -> None:
        bench.turn()
        bench.generate("more")

    in_time(bench, refuse)
