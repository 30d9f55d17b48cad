"""The forecast of the demand: its sums match the current state of the requests."""

from __future__ import annotations

import pytest

from ebbtide.scheduler.batching.forecast import HORIZONS, LONGEST_AGE, Forecast
from ebbtide.scheduler.batching.output_lengths import EDGES, OutputLengths

from ..make import pool, request, run


def test_a_restarted_request_is_forecast_by_its_prefill_after_its_old_bin_ends() -> None:
    """The step in which its first run would have reached the next bin is still recorded."""
    pages = pool(16)
    first = run(pages, request("a", prompt=32, max_tokens=1000), computed=32)
    other = run(pages, request("b", prompt=8, max_tokens=1, arrival=1), computed=8)
    forecast = Forecast([pages], OutputLengths())
    forecast.started(first)
    forecast.started(other)
    pages.release_kv_cache(first, is_insert=False)
    forecast.left(first)
    again = run(pages, request("a", prompt=32, max_tokens=1000), computed=8)
    forecast.started(again)
    for _ in range(EDGES[1]):
        forecast.advance()
    pages.allocate_up_to(again, 32)
    again.computed = 32
    forecast.left(other)
    forecast.refresh()
    expected = Forecast([pages], OutputLengths())
    expected.started(again)
    assert forecast.change(0) == pytest.approx(expected.change(0))
    assert len(expected.change(0)) == len(HORIZONS)


def test_a_long_output_is_forecast_again_long_before_it_reaches_the_next_bin() -> None:
    """The bin from 1,024 tokens on has 424 tokens. Terms that are as old as that are wrong by a fifth of the output."""
    pages = pool(512)
    req = run(pages, request("a", prompt=8, outputs=1030, max_tokens=8000))
    lengths = OutputLengths()
    forecast = Forecast([pages], lengths)
    forecast.started(req)
    before = forecast.variance(0)
    for _ in range(LONGEST_AGE):
        req.known.append(1)
        req.computed += 1
        pages.allocate_up_to(req, req.computed)
        forecast.advance()
    forecast.refresh()
    expected = Forecast([pages], OutputLengths())
    expected.started(req)
    assert forecast.change(0) == pytest.approx(expected.change(0))
    assert forecast.variance(0) == pytest.approx(expected.variance(0)) != pytest.approx(before)
