from __future__ import annotations

import pytest

from ebbtide.errors import StartupError
from ebbtide.messages import PoolInfo
from ebbtide.model_runner.kv.layer_groups import LayerGroups, group_layers
from ebbtide.model_runner.kv.memory import PoolBudget

MIB = 1 << 20


def budget(groups: LayerGroups, room: int, max_total_tokens: int | None = None) -> PoolBudget:
    """A budget for pages of 16 tokens of 64 bytes per layer."""
    return PoolBudget(
        free_bytes=room,
        weight_bytes=0,
        fraction=1.0,
        size_of=lambda num_pages: groups.num_bytes(num_pages, 16, 64),
        page_size=16,
        limit_bytes=None,
        max_total_tokens=max_total_tokens,
    )


def test_layers_are_divided_by_their_windows() -> None:
    groups, sentence = group_layers([100, None, 50, 2000], 2000, 0.25, None)
    assert groups == LayerGroups((1, 3), (0, 2), 100, 0.25)
    assert groups.layers == ((1, 3), (0, 2))
    assert sentence == (
        "2 of 4 layers read a sliding window of 100 tokens and have a KV pool of their own "
        "(--swa-full-tokens-ratio 0.25)"
    )
    assert group_layers([None, 2000], 2000, 0.25, "x") == (LayerGroups((0, 1)), "")
    groups, sentence = group_layers([100, None], 2000, 0.25, "a reason")
    assert groups == LayerGroups((0, 1))
    assert sentence.endswith(": a reason")


@pytest.mark.parametrize(("window", "ratio"), [(128, 0.2), (1024, 0.2), (2048, 0.375), (4096, 0.75), (16384, 1.0)])
def test_the_default_ratio_grows_with_the_window(window: int, ratio: float) -> None:
    groups, _ = group_layers([window, None], 131_072, None, None)
    assert groups.ratio == ratio
    groups, _ = group_layers([window, window], 131_072, None, None)  # the first pool has no layers
    assert groups.ratio == 0.2


@pytest.mark.parametrize("windows", [[None] * 4, [100, None, 100, 100], [100] * 4, [100, None, None, None]])
@pytest.mark.parametrize("ratio", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("room", [5 * 16 * 64, MIB, 10 * MIB + 7])
def test_pools_fill_the_memory_as_far_as_whole_pages_allow(windows: list[int | None], ratio: float, room: int) -> None:
    groups, _ = group_layers(windows, 4096, ratio, None)
    num_pages = budget(groups, room).num_pages()
    assert groups.num_bytes(num_pages, 16, 64) <= room < groups.num_bytes(num_pages + 1, 16, 64)
    assert all(pool.num_pages > 0 for pool in groups.pools(num_pages, 16))


def test_the_window_has_pages_for_one_request_and_a_chunk() -> None:
    groups, _ = group_layers([100, None], 4096, 0.01, None)
    assert groups.pools(1000, 16)[1] == PoolInfo(15, 16, "swa", 100)
    assert groups.pools(10, 16)[1].num_pages == 10  # never more than the first pool


def test_a_requested_size_includes_the_pool_of_the_window() -> None:
    groups, _ = group_layers([100, None], 4096, 0.5, None)
    assert budget(groups, 100 * 16 * 64 + 50 * 16 * 64, 1600).num_pages() == 100
    with pytest.raises(StartupError, match="--max-total-tokens 1600 needs 0"):
        budget(groups, 100 * 16 * 64 + 50 * 16 * 64 - 1, 1600).num_pages()
