"""The attributes of a request that pools and caches use."""

from __future__ import annotations

from typing import Protocol

from .ledger import PageOwner


class CacheNode(Protocol):
    """The position in a cache where the shared pages of a request end.

    Only the cache that created the object reads it.
    """


class CachedRequest(PageOwner, Protocol):
    """A request. The prefix cache owns the first ``num_shared`` of its pages; the request owns the others."""

    rid: str
    namespace: str  # requests of different namespaces share no pages
    known: list[int]  # prompt and output tokens
    computed: int  # number of known tokens with K/V, including steps in flight
    num_confirmed: int  # number of known tokens with K/V, excluding steps in flight
    pages: list[int]
    num_shared: int
    node: CacheNode | None
    sent_pages: int  # number of page-table entries that were sent to the runner
    sent_elsewhere: int  # number of tokens whose pages in all pools except the first were sent to the runner
    protected: bool  # True if the request must not be retracted
    max_samples: int  # maximum number of output tokens of one decode item

    @property
    def max_kv_tokens(self) -> int:
        """The maximum number of tokens whose K/V the request can need."""

    @property
    def num_private(self) -> int:
        """Number of pages that the request owns."""

    @property
    def is_decoding(self) -> bool:
        """True if the next item of the request computes one token."""

    @property
    def num_samples(self) -> int:
        """The maximum number of tokens that the next decode item may yield; at least 1."""

    @property
    def num_reusable(self) -> int:
        """Number of known tokens whose K/V may come from a cache."""

    @property
    def needs_prompt_logprobs(self) -> bool:
        """True while prompt tokens must still be computed for their log-probabilities."""

    @property
    def is_waiting(self) -> bool:
        """True if the request has no row because it is in the queue or is waiting for its first choice."""
