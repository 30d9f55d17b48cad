"""``ebbtide simulate`` and the simulated model schedule the same load in the same way.

All requests arrive at once, so that nothing depends on the clock. bench/live_check.py compares times.
"""

from __future__ import annotations

import random

import pytest

from ebbtide.commands.simulation.measure import Case, simulate
from ebbtide.commands.simulation.trace import TraceRequest
from ebbtide.commands.simulation.virtual import Machine
from tests.scheduler.world import Shape, World, greedy

PAGE, NUM_PAGES, ROWS, CHUNK, CONTEXT = 4, 128, 8, 32, 4096


@pytest.mark.parametrize("conservativeness", [0.02, 1.0])
def test_both_finish_the_same_requests_after_the_same_steps_and_retractions(conservativeness: float) -> None:
    rng = random.Random(3)
    lengths = [(rng.randint(8, 80), rng.randint(4, 90)) for _ in range(24)]
    trace = [TraceRequest(0.0, prompt, output, None, 0, output) for prompt, output in lengths]
    machine = Machine(PAGE, ROWS, CHUNK, CONTEXT)
    virtual = simulate(trace, machine, Case("cost", conservativeness, NUM_PAGES * PAGE, 0.0))

    shape = Shape(NUM_PAGES, PAGE, ROWS, CHUNK, context_length=CONTEXT, retract_policy="cost")
    world = World(Shape(**{**vars(shape), "conservativeness": conservativeness}))
    for index, (prompt, output) in enumerate(lengths):
        world.generate(f"r{index}", [index + 1] * prompt, greedy(output, ignore_eos=True))
    outcomes = world.run()
    totals = world.scheduler.state.metrics.totals

    assert [len(outcomes[f"r{index}"].tokens) for index in range(24)] == [output for _, output in lengths]
    assert virtual.summary.completed == 24
    assert world.steps == virtual.summary.steps
    assert totals["num_retracted_requests_total"] == virtual.summary.retractions
    assert totals["num_resumed_requests_total"] == virtual.summary.retractions
    assert totals["num_recomputed_tokens_total"] == virtual.summary.recomputed_tokens
    assert virtual.summary.retractions > 0
