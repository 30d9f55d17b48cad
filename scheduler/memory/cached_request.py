"""The part of a request that pools and caches read and write."""

from __future__ import annotations

from typing import Protocol

from .ledger import PageOwner


class CacheNode(Protocol):
    """The place in a cache where a request's shared pages end. Only the cache that created it reads it."""


class CachedRequest(PageOwner, Protocol):
    """A request whose first ``num_shared`` pages belong to the prefix cache; the others are its own."""

    rid: str
    namespace: str  # requests of different namespaces share no pages
    known: list[int]  # prompt and output tokens
    computed: int  # known tokens with K/V, including steps in flight
    num_confirmed: int  # known tokens with K/V, without steps in flight
    pages: list[int]
    num_shared: int
    node: CacheNode | None
    sent_pages: int  # page-table entries that the runner knows
    protected: bool  # no longer a victim
    max_samples: int  # most output tokens that one of its decode items yields

    @property
    def max_kv_tokens(self) -> int:
        """Most tokens of K/V it can ever need."""

    @property
    def num_private(self) -> int:
        """Number of its own pages."""

    @property
    def is_decoding(self) -> bool:
        """True if its next item is one token."""

    @property
    def num_samples(self) -> int:
        """Most tokens that its next decode item may yield; at least 1."""

    @property
    def num_reusable(self) -> int:
        """Number of known tokens whose K/V may come from a cache."""

    @property
    def needs_prompt_logprobs(self) -> bool:
        """True while prompt tokens must be computed for their log-probabilities."""

    @property
    def is_waiting(self) -> bool:
        """True if it is in the queue or held back, and has no row."""
