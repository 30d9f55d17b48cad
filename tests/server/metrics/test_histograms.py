"""Histograms follow Prometheus: a bucket counts all samples at or below its bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from ebbtide.server.metrics.histograms import Histograms

BOUNDS = (0.0, 0.5, 1.0, 2.0, 10.0, 1_100_000.0)


def shown(*names: str) -> tuple[Histograms, CollectorRegistry]:
    """Build histograms with one quantity under these names."""
    histograms, registry = Histograms(), CollectorRegistry()
    registry.register(histograms)
    for name in names:
        histograms.register("quantity", name, "A text.", {"model": "m"}, BOUNDS)
    return histograms, registry


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 10.0, 11.0])))
def test_the_page_is_that_of_prometheus_own_client(samples: list[float]) -> None:
    histograms, ours = shown("times")
    theirs = CollectorRegistry()
    reference = Histogram("times", "A text.", ["model"], buckets=BOUNDS, registry=theirs).labels("m")
    for sample in samples:
        histograms.observe("quantity", sample)
        reference.observe(sample)
    lines = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == lines


def test_samples_added_at_once_count_individually() -> None:
    (one, first), (many, second) = shown("a"), shown("a")
    for _ in range(5):
        one.observe("quantity", 0.5)
    many.observe("quantity", 0.5, 5)
    assert generate_latest(first) == generate_latest(second)


def test_names_that_share_buckets_count_every_sample_once() -> None:
    histograms, registry = shown("a", "b")
    histograms.observe("quantity", 3.0)
    for name in "ab":
        assert registry.get_sample_value(f"{name}_count", {"model": "m"}) == 1
        assert registry.get_sample_value(f"{name}_sum", {"model": "m"}) == 3.0


def test_an_unregistered_quantity_raises() -> None:
    with pytest.raises(KeyError):
        Histograms().observe("nothing", 1.0)
