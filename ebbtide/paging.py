"""Page arithmetic shared by admission, demand, allocation and rejection."""

from __future__ import annotations

from .messages import RunnerInfo

LEAST_RATIO = 0.2  # a smaller pool would hold too few requests that are shorter than the window
TYPICAL_TOKENS = 8192


def pages_for(num_tokens: int, page_size: int) -> int:
    """Return the number of pages that hold ``num_tokens`` tokens."""
    return -(-num_tokens // page_size)


def least_tokens(prompt_len: int, max_tokens: int) -> int:
    """Return the number of tokens whose KV must fit for admission: the prompt and at most one output token."""
    return prompt_len + min(max(max_tokens, 1), 2) - 1


def fits(prompt_len: int, max_tokens: int, info: RunnerInfo) -> bool:
    """Return True if the request can be admitted when no other request uses the first pool."""
    return pages_for(least_tokens(prompt_len, max_tokens), info.page_size) <= info.num_pages


def window_pool_ratio(window: int, wanted: float | None) -> float:
    """Return ``wanted``, or the default of --swa-full-tokens-ratio if it is None.

    With the default, the windows and chunks of requests of ``TYPICAL_TOKENS`` tokens fit into the window pool if the
    requests fit into the first pool.
    """
    return min(max(LEAST_RATIO, 1.5 * window / TYPICAL_TOKENS), 1.0) if wanted is None else wanted


def window_pool_pages(window: int, *, num_pages: int, page_size: int, ratio: float) -> int:
    """Return the number of pages of the sliding-window pool if the first pool has ``num_pages`` pages.

    It is ``ratio`` times ``num_pages``, but at least enough for the window of one request and one chunk of the same
    length; that minimum is limited to ``num_pages``.
    """
    least = 2 * pages_for(window, page_size) + 1
    return max(int(num_pages * ratio), min(least, num_pages), 1)
