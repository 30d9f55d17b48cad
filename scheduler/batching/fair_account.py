"""One account (API key) and its turns, for ``FairOrder``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..request import Request
from .arrival_order import ArrivalOrder

QUANTUM = 512  # tokens per account and round
RECENT = 32  # number of ended requests over which the mean output length of an account is taken
FIRST_MEAN = 1024  # assumed mean output length of a new account, in tokens; weighted as one ended request


@dataclass(slots=True, eq=False)
class Account:
    """The open requests of one account, and the tokens it has used.

    Attributes:
        queue: the requests that have never run.
        started: the running requests by id.
        used: tokens since the start of round 0, counted as if the account had used its share in every round in which it
            had no waiting requests.
        num_ended: number of recently ended requests.
        outputs: total number of their output tokens.
    """

    queue: ArrivalOrder = field(default_factory=ArrivalOrder)
    started: dict[str, Request] = field(default_factory=dict)
    used: int = 0
    num_ended: float = 0.0
    outputs: float = 0.0

    @property
    def round(self) -> int:
        """The round in which the account has its next turn."""
        return self.used // QUANTUM

    @property
    def is_active(self) -> bool:
        """True if a request of the account is running or waiting for its first start."""
        return bool(self.queue or self.started)

    def mean_output(self) -> float:
        """Estimate the mean output length. Outputs of running requests count, so that long ones are noticed early."""
        outputs = FIRST_MEAN + self.outputs + sum(req.num_outputs for req in self.started.values())
        return outputs / (1 + self.num_ended)

    def ended(self, num_outputs: int) -> None:
        """Record the output length of a request that has ended."""
        self.num_ended += 1 - self.num_ended / RECENT
        self.outputs += num_outputs - self.outputs / RECENT


def tokens_of(req: Request, mean_output: float) -> int:
    """Return the tokens that a request will probably use: the prompt that is not cached, and its output."""
    expected = max(min(req.sampling.max_tokens, round(mean_output)), req.num_outputs)
    return req.prompt_len - req.history.cached_tokens + expected


@dataclass(slots=True)
class Turn:
    """The turn of one account in the order that is being read.

    Attributes:
        mean_output: expected output length of its requests, in tokens.
        reserved: tokens that its running requests, and those that were read, will probably use.
        grown: the part of ``reserved`` that the requests do not use yet.
        num_rows: number of these requests.
    """

    account: Account
    requests: Iterator[Request]
    used: int
    mean_output: float
    reserved: int
    grown: int
    num_rows: int

    @classmethod
    def of(cls, account: Account) -> Turn:
        """Return the next turn of an account."""
        mean = account.mean_output()
        running = account.started.values()
        reserved = sum(tokens_of(req, mean) for req in running)
        present = sum(req.prompt_len - req.history.cached_tokens + req.num_outputs for req in running)
        return cls(account, iter(account.queue), account.used, mean, reserved, reserved - present, len(running))

    def add(self, tokens: int) -> None:
        """Add a request that was read, which will probably use this number of tokens."""
        self.used += tokens
        self.reserved += tokens
        self.num_rows += 1
