"""Cost of the console for the scheduler: the time of a step with and without a viewer, in interleaved blocks.

    python bench/console_cost.py [--rows 256] [--waiting 10000] [--steps 100] [--blocks 20]

A viewer asks four times a second for the open requests and sessions. The script measures the CPU time of one answer
with its encoding, and that of a step. The share is the time for four answers in each second of steps.
"""

from __future__ import annotations

import argparse
import statistics
import time

import msgspec

from bench.scheduler_step import build, requests
from ebbtide.messages import InspectReq
from ebbtide.server.console.feed import INTERVAL_S, MAX_REQUESTS, MAX_SESSIONS

QUESTION = InspectReq("call", MAX_REQUESTS, MAX_SESSIONS)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=20)
    arguments = parser.parse_args()
    scheduler, runner = build(arguments.rows, 16)
    scheduler.receive(requests(arguments.rows), 0.0)
    encoder = msgspec.msgpack.Encoder()
    plain: list[float] = []
    answers: list[float] = []
    for block in range(arguments.blocks):
        started = time.thread_time()
        for step in range(arguments.steps):
            plan = scheduler.next_step(float(step))
            assert plan is not None
            runner.submit(plan)
            scheduler.settle(runner.collect())
            scheduler.take_output()
            scheduler.self_check_during_busy()
        plain.append((time.thread_time() - started) / arguments.steps)
        if block == 0:
            scheduler.receive(requests(arguments.waiting + arguments.rows)[arguments.rows :], 0.0)
        asked = time.thread_time()
        scheduler.receive([QUESTION], 0.0)
        for reply in scheduler.take_output().replies:
            encoder.encode(reply)
        answers.append(time.thread_time() - asked)
    step_s, answer_s = statistics.median(plain[1:]), statistics.median(answers[1:])
    share = answer_s / INTERVAL_S
    print(f"one step {step_s * 1000:.2f} ms, one answer {answer_s * 1000:.3f} ms, share of a second {share:.2%}")


if __name__ == "__main__":
    main()
