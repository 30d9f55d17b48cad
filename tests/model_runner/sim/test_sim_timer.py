"""Steps of the simulated runner take at least as long as their formula says. Sleeping longer is not an error."""

from __future__ import annotations

import time

from ebbtide.config import RunnerConfig
from ebbtide.messages import SamplingParams
from ebbtide.model_runner.sim.sim import SimRunner
from ebbtide.model_runner.sim.sim_timer import StepTimer
from ebbtide.plan import PlanItem, RowInit, StepPlan
from ebbtide.step_cost import StepCost

PREFILL = PlanItem(0, 0, [65] * 16, pages=[0], init=RowInit(SamplingParams(max_tokens=4), 16))


def test_a_step_costs_its_rows_its_prefilled_tokens_and_its_context() -> None:
    cost = StepCost(base_s=1.0, decode_row_s=0.1, prefill_token_s=0.01, context_token_s=0.001)
    decode = PlanItem(1, 99, None)
    assert cost.step_s([PREFILL, decode]) == cost.seconds(1, 16, 116)


def test_two_steps_in_flight_take_the_time_of_both() -> None:
    timer = StepTimer(StepCost(0.002, 0.0, 0.0, 0.0))
    started = time.monotonic()
    timer.submitted(StepPlan(0, []))
    timer.submitted(StepPlan(1, []))
    timer.wait()
    timer.wait()
    assert time.monotonic() >= started + 0.004


def test_every_flag_makes_a_step_longer() -> None:
    flags: list[dict[str, float]] = [
        {"sim_step_ms": 3.0},
        {"sim_prefill_token_us": 200.0},
        {"sim_context_token_ns": 200_000.0},
        {"sim_decode_row_us": 3000.0},
    ]
    for flag in flags:
        runner = SimRunner.from_config(RunnerConfig(max_total_tokens=64, context_length=64, **flag))  # type: ignore[arg-type]
        plans = [StepPlan(0, [PREFILL]), StepPlan(1, [PlanItem(0, 16, None, pages=[1], page_index=1)])]
        started = time.monotonic()
        for plan in plans:
            runner.submit(plan)
            runner.collect()
        assert time.monotonic() >= started + 0.003, flag
