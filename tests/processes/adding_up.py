"""Checks the counts of requests of a daemon while a test kills its processes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx

from ..server.metrics.request_terms import checked_terms


@contextmanager
def adding_up(url: str) -> Iterator[None]:
    """Scrape the metrics at random moments during the block; every page must satisfy the equation of the requests."""
    ended, rng = threading.Event(), random.Random(3)

    def scrape_often() -> int:
        count = 0
        while not ended.wait(rng.random() / 20):
            checked_terms(httpx.get(f"{url}/metrics", timeout=60).text)
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        scraping = pool.submit(scrape_often)
        try:
            yield
        finally:
            ended.set()
        assert scraping.result() > 0
