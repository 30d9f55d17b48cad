"""Page arithmetic: the formulas that admission, demand, allocation and refusal share."""

from __future__ import annotations

from .messages import RunnerInfo


def pages_for(num_tokens: int, page_size: int) -> int:
    """Whole pages that hold ``num_tokens`` tokens: the formula of admission, demand, allocation and refusal alike."""
    return -(-num_tokens // page_size)


def least_pages(prompt_len: int, max_tokens: int, page_size: int) -> int:
    """Pages without which a request may not enter: for two tokens, or for the one or none that it asked for."""
    return pages_for(prompt_len + min(max(max_tokens, 1), 2) - 1, page_size)


def fits(prompt_len: int, max_tokens: int, info: RunnerInfo) -> bool:
    """Whether a request may enter, as far as the whole pool is concerned."""
    return least_pages(prompt_len, max_tokens, info.page_size) <= info.num_pages
