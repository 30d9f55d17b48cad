"""The order of waiting requests with ``--schedule-policy fair``: accounts (API keys) take turns, by tokens.

The rule is deficit round robin in its surplus form. In its turn, an account starts requests until it has used at least
``QUANTUM`` tokens; the excess counts in its next rounds. After a request of 8,000 tokens, an account therefore misses
many rounds; these are counted, so that the account need not be visited in each of them.

Turns do not limit requests that started while no other account had any and that run for minutes. While other accounts
have requests, an account therefore must not exceed its share of memory and rows, which is the same for every account,
unless half of both stays free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from ..request import Request
from .arrival_order import ArrivalOrder
from .fair_account import QUANTUM, Account, Turn, tokens_of

LEAST_SHARE = 0.25  # part of memory and rows that every account may use
SPARE = 0.5  # part of memory and rows that must stay free if an account exceeds its share


class Capacity(Protocol):
    """The memory that requests share."""

    page_size: int

    @property
    def capacity(self) -> int:
        """All pages."""

    @property
    def usable_pages(self) -> int:
        """Pages that no running request uses."""


@dataclass(slots=True)
class _Started:
    """The requests that have been read, all of which may start.

    Attributes:
        tokens: tokens that they will probably use.
    """

    tokens: int = 0
    num_rows: int = 0

    def add(self, tokens: int) -> None:
        """Add a request that will probably use this number of tokens."""
        self.tokens += tokens
        self.num_rows += 1


class FairOrder:
    """Requests that have run before, in order of arrival, then new requests, in the turns of their accounts.

    When a request starts, its account is charged an estimated number of tokens; the end of the request corrects it. The
    cost of starting, adding or removing a request does not depend on the number of accounts or requests, apart from a
    search among the rounds in which accounts have their next turn. Reading the order visits the running requests of the
    accounts that are read.
    """

    def __init__(self, memory: Capacity, num_rows: int) -> None:
        self._memory = memory
        self._num_rows = num_rows
        self._num_active = 0
        self._num_running = 0
        self._ran = ArrivalOrder()
        self._accounts: dict[str, Account] = {}
        self._turns: dict[int, dict[Account, None]] = {}  # accounts with waiting requests by round, in order
        self._rounds: list[int] = []  # the keys of ``_turns``, in order
        self._round = 0  # the latest round in which a request has started
        self._used: dict[str, int] = {}  # estimated tokens of requests that have started and not ended
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __contains__(self, req: Request) -> bool:
        return req in self._ran or (req.account in self._accounts and req in self._accounts[req.account].queue)

    def __iter__(self) -> Iterator[Request]:
        yield from self._ran
        yield from self._new_requests(all_of_them=True)

    def candidates(self) -> Iterator[Request]:
        """Yield, in order, the requests that may start now: all except those of accounts that exceed their share."""
        yield from self._ran
        yield from self._new_requests(all_of_them=False)

    @property
    def in_use(self) -> bool:
        """True if a request is waiting or has started and not ended."""
        return bool(self._len or self._used)

    def num_before(self, account: str) -> int:
        """Return the number of waiting requests ahead of a new request of this account.

        This is an estimate, which assumes that every account starts one request per round.
        """
        own = len(self._accounts[account].queue) if account in self._accounts else 0
        others = sum(map(len, self._turns.values())) - bool(own)
        new = self._len - len(self._ran)
        return len(self._ran) + min(new, own + others * (own + 1))

    def put(self, req: Request, *, front: bool) -> None:
        """Add a request.

        front: True to insert a request that has run before in front of all requests that have not, and any other one in
            front of its account's requests; False to append it to its account's requests.
        """
        self._len += 1
        account = self._accounts.setdefault(req.account, Account())
        if req.rid in account.started:
            self._stopped(account, req)
        if front and req.rid in self._used:
            self._ran.put(req, front=True)
            return
        self._num_active += not account.is_active
        if not account.queue:
            account.used = max(account.used, self._round * QUANTUM)  # unused turns are lost
            self._add_turn(account)
        account.queue.put(req, front=front)

    def remove(self, req: Request, *, started: bool = False) -> None:
        """Remove a request. Raises KeyError if it is not waiting.

        started: True if it has started, and its account uses the tokens.
        """
        account = self._accounts[req.account]
        was_active = account.is_active
        if req in self._ran:
            self._ran.remove(req)
        else:
            self._remove_new(account, req, started=started)
        if started:
            account.started[req.rid] = req
            self._num_running += 1
        self._len -= 1
        self._num_active += account.is_active - was_active

    def ended(self, req: Request) -> None:
        """Replace the estimated tokens of a request that has started by the number of tokens that it used."""
        estimated = self._used.pop(req.rid, None)
        if estimated is None:
            return
        account = self._accounts[req.account]
        if req.rid in account.started:
            self._stopped(account, req)
        account.ended(req.num_outputs)
        self._use(account, req.prompt_len - req.history.cached_tokens + req.num_outputs - estimated)

    def _stopped(self, account: Account, req: Request) -> None:
        del account.started[req.rid]
        self._num_running -= 1
        self._num_active -= not account.is_active

    def _remove_new(self, account: Account, req: Request, *, started: bool) -> None:
        account.queue.remove(req)
        if not account.queue:
            self._remove_turn(account)
        if started and req.rid not in self._used:
            self._round = max(self._round, account.round)
            self._used[req.rid] = tokens = tokens_of(req, account.mean_output())
            self._use(account, tokens)

    def _use(self, account: Account, tokens: int) -> None:
        """Count tokens, and move the account to the round of its next turn. tokens: may be negative."""
        used = max(account.used + tokens, self._round * QUANTUM) if account.queue else account.used + tokens
        if account.queue and used // QUANTUM != account.round:
            self._remove_turn(account)
            account.used = used
            self._add_turn(account)
        account.used = used

    def _add_turn(self, account: Account) -> None:
        if account.round not in self._turns:
            self._turns[account.round] = {}
            insort(self._rounds, account.round)
        self._turns[account.round][account] = None

    def _remove_turn(self, account: Account) -> None:
        del self._turns[account.round][account]
        if not self._turns[account.round]:
            del self._turns[account.round]
            del self._rounds[bisect_left(self._rounds, account.round)]

    def _new_requests(self, *, all_of_them: bool) -> Iterator[Request]:
        """Yield the requests in the order in which they would start, without changing anything.

        all_of_them: False to leave out the requests of accounts that exceed their share.
        """
        later: list[tuple[int, int, Turn]] = []  # heap of further turns, by round
        first = ((number, account) for number in self._rounds for account in self._turns[number])
        account_turn = next(first, None)
        count, started = 0, _Started()
        while account_turn or later:
            if account_turn and not (later and later[0][0] < account_turn[0]):
                number, turn = account_turn[0], Turn.of(account_turn[1])
                account_turn = next(first, None)
            else:
                number, _, turn = heappop(later)
            for req in turn.requests:
                tokens = tokens_of(req, turn.mean_output)
                if not (all_of_them or self._may_start(turn, tokens, started)):
                    break
                yield req
                started.add(tokens)
                turn.add(tokens)
                if turn.used // QUANTUM > number:
                    count += 1
                    heappush(later, (turn.used // QUANTUM, count, turn))
                    break

    def _may_start(self, turn: Turn, tokens: int, started: _Started) -> bool:
        """Return True if the account has no more than its share with one more request, or if enough stays free."""
        if self._num_active < 2 or not turn.num_rows:
            return True
        size = self._memory.capacity * self._memory.page_size
        share = max(1 / self._num_active, LEAST_SHARE)
        if turn.reserved + tokens <= share * size and turn.num_rows + 1 <= share * self._num_rows:
            return True
        free = self._memory.usable_pages * self._memory.page_size - turn.grown - started.tokens - tokens
        free_rows = self._num_rows - self._num_running - started.num_rows - 1
        return turn.account.num_ended >= 1 and free >= SPARE * size and free_rows >= SPARE * self._num_rows
