"""Requests for unit tests, made directly in the state that a test needs."""

from __future__ import annotations

from ebbtide.messages import SamplingParams, TextParams
from ebbtide.scheduler.memory.allocator import PageAllocator
from ebbtide.scheduler.memory.pool import Pool
from ebbtide.scheduler.memory.radix_cache import RadixCache
from ebbtide.scheduler.request import History, Phase, Request


def request(rid: str = "a", *, prompt: int = 4, outputs: int = 0, arrival: int = 0, **fields: object) -> Request:
    """A waiting request with ``prompt`` and ``outputs`` tokens."""
    max_tokens = fields.pop("max_tokens", 100)
    assert isinstance(max_tokens, int)
    defaults: dict[str, object] = {
        "sampling": SamplingParams(max_tokens=max_tokens),
        "text": TextParams(),
        "page_size": 4,
        "history": History(),
    }
    known = [arrival * 1000 + index for index in range(prompt + outputs)]
    return Request(rid=rid, arrival=arrival, prompt_len=prompt, known=known, **(defaults | fields))  # type: ignore[arg-type]


def pool(num_pages: int = 16, page_size: int = 4) -> Pool:
    """A pool with an empty radix cache."""
    allocator = PageAllocator(num_pages, page_size)
    return Pool(allocator, RadixCache(allocator))


def run(pool: Pool, req: Request, computed: int | None = None) -> Request:
    """Let a request run with pages for its first ``computed`` tokens; by default, all tokens except the last."""
    pool.tree_cache.attach(req, pool.tree_cache.match_prefix(req))
    req.computed = req.num_confirmed = len(req.known) - 1 if computed is None else computed
    pool.allocate_up_to(req, req.computed)
    req.phase = Phase.RUNNING
    req.row = req.arrival
    return req
