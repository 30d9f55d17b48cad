"""Measures the CPU time of traces, and writes it into docs/monitoring/tracing.md: ``python -m tests.tracing.cost``."""

from __future__ import annotations

import signal
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import psutil

from ..conftest import Daemon
from .collectors import http_collector
from .tracing_page import write_part

REQUESTS = 300
TOKENS = 64
STREAMS = 16
ROUNDS = 3


@dataclass(frozen=True)
class Cost:
    """CPU time per request, in milliseconds."""

    front: float
    scheduler: float


def measure(*flags: str) -> Cost:
    """The CPU time that the processes of a daemon use for ``REQUESTS`` requests."""
    daemon = Daemon(flags)
    try:
        daemon.wait_until_ready()
        ask(daemon.url, STREAMS)  # warms up
        before = cpu_s(daemon)
        ask(daemon.url, REQUESTS)
        used = [after - start for after, start in zip(cpu_s(daemon), before, strict=True)]
        daemon.signal(signal.SIGTERM)
        daemon.wait()
        return Cost(*(1000 * seconds / REQUESTS for seconds in used))
    finally:
        daemon.close()


def ask(url: str, count: int) -> None:
    """Send requests, ``STREAMS`` at a time."""
    body = {"prompt": "tide " * 20, "max_tokens": TOKENS, "ignore_eos": True}
    with httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(STREAMS) as pool:
        for reply in pool.map(lambda _: client.post("/v1/completions", json=body), range(count)):
            reply.raise_for_status()


def cpu_s(daemon: Daemon) -> list[float]:
    """CPU time so far of the front and the scheduler."""
    times = [psutil.Process(daemon.pids[name]).cpu_times() for name in ("front", "scheduler")]
    return [one.user + one.system for one in times]


def main() -> None:
    """Measure both in turn, and write the medians."""
    plain, traced = list[Cost](), list[Cost]()
    with http_collector() as collector:
        for _ in range(ROUNDS):
            plain.append(measure())
            traced.append(measure("--otlp-endpoint", f"http://127.0.0.1:{collector.port}"))
    rows = [f"| {name} | {median(plain, name):.2f} | {median(traced, name):.2f} |" for name in ("front", "scheduler")]
    text = (
        f"CPU time per request in milliseconds, for {REQUESTS} requests of {TOKENS} output tokens to `sim`, {STREAMS} "
        f"at a time, all traced (median of {ROUNDS} rounds):\n\n"
        "| process | without traces | with traces |\n|---|---|---|\n"
    )
    write_part("cost", text + "\n".join(rows) + "\n")


def median(costs: list[Cost], name: str) -> float:
    """The median of one process."""
    return statistics.median(getattr(cost, name) for cost in costs)


if __name__ == "__main__":
    main()
