"""The equation of the requests: received = ended + running + waiting."""

from __future__ import annotations

RECEIVED = "num_received_requests_total"
TERMS = ("num_requests_total", "num_aborted_requests_total", "num_running_reqs", "num_queue_reqs")


def checked_terms(page: str) -> dict[str, float]:
    """Return the terms on a page of metrics, each summed over its labels, after a check of the equation."""
    sums = dict.fromkeys((RECEIVED, *TERMS), 0.0)
    for line in page.splitlines():
        name = line.partition("{")[0].removeprefix("ebbtide:")
        if name in sums:
            sums[name] += float(line.rpartition(" ")[2])
    assert sums[RECEIVED] == sum(sums[name] for name in TERMS), sums
    return sums
