"""Constraints made sure of before a request goes on: compiled off the event loop, within a time limit, and remembered.

Nothing ever runs without the constraint that it asked for: what cannot be compiled is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

from ebbtide.errors import GrammarError, Rejected
from ebbtide.grammar import Guidance, Matcher, ReasoningPrefix, grammar_of, mark_in_lark, special_ids
from ebbtide.messages import RunnerInfo
from ebbtide.runtime.large_stack_threads import deep_pool
from ebbtide.tokenization.vocabulary import Vocabulary

from .constraints import MAX_BYTES, Constraint, ConstraintFields, constraint_of
from .gbnf import lark_of_ebnf

NUM_THREADS = 2
MAX_REMEMBERED = 1000
MAX_READ_REMEMBERED = 16 * 1024  # characters of a grammar that was read from a client's: a larger one is read again
REHEARSED = 16  # tokens that a grammar is tried on: one that is too costly shows it early
BUSY = "All threads that compile grammars are busy (--grammar-timeout). Try again later."


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a constraint. problem: what is wrong with it, "" for nothing. busy: nobody could look at it.

    lark: what an unread grammar reads in Lark.
    """

    problem: str = ""
    lark: str = ""
    busy: bool = False


class StructuredOutput:
    """The grammars of one model. Used on one event loop."""

    def __init__(self, vocabulary: Vocabulary, info: RunnerInfo, timeout_s: float) -> None:
        self._vocabulary = vocabulary
        self._info = info
        self._timeout_s = timeout_s
        self._special_ids = special_ids(vocabulary)
        self._guidance: Guidance | None = None
        self._building = threading.Lock()
        self._pool = deep_pool(NUM_THREADS, "grammar")
        self._slots = asyncio.Semaphore(NUM_THREADS)
        self._verdicts: OrderedDict[bytes, asyncio.Task[Verdict]] = OrderedDict()

    async def grammar_of(
        self, fields: ConstraintFields, *, after: ReasoningPrefix | None = None, instead: str = ""
    ) -> str:
        """``PreparedRequest.grammar`` for a request; "" when it asks for no constraint. Raises Rejected."""
        constraint = constraint_of(fields)
        return "" if constraint is None else await self.compile(constraint, after=after, instead=instead)

    async def compile(self, constraint: Constraint, *, after: ReasoningPrefix | None = None, instead: str = "") -> str:
        """``PreparedRequest.grammar`` for a constraint that is sure to work. Raises Rejected.

        after: what may stand in front of it: a model's reasoning. instead: see ``grammar_of``; sure to work as well.
        """
        verdict = await asyncio.shield(self._judged(constraint))
        if verdict.busy:
            raise Rejected(BUSY, status=503, kind="overloaded_error", code="compilers_busy", retry_after_s=5)
        if verdict.problem:
            raise Rejected(
                f"'{constraint.param}' cannot be used: {verdict.problem}", param=constraint.param, code="invalid_value"
            )
        lark = verdict.lark if constraint.unread else constraint.lark
        return grammar_of(lark, after=after, instead=instead, special_ids=self._special_ids)

    def mark(self, text: str) -> str:
        """What a mark of the model's is in Lark: a text or a control token."""
        return mark_in_lark(text, self._special_ids)

    def close(self) -> None:
        """End the threads; what they work on is finished first, and takes seconds at most."""
        self._pool.shutdown(cancel_futures=True)

    def _judged(self, constraint: Constraint) -> asyncio.Task[Verdict]:
        """What came of a constraint: found out once for all requests that have the same."""
        key = hashlib.sha256(b"%d" % constraint.unread + constraint.lark.encode()).digest()
        task = self._verdicts.get(key)
        if task is None:
            task = self._verdicts[key] = asyncio.create_task(self._judge(key, constraint), name="grammar")
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > MAX_REMEMBERED:
            self._verdicts.popitem(last=False)
        return task

    async def _judge(self, key: bytes, constraint: Constraint) -> Verdict:
        verdict = await self._timed(constraint)
        if verdict is None or verdict.busy or len(verdict.lark) > MAX_READ_REMEMBERED:
            self._verdicts.pop(key, None)  # another time the machine may have more of its time for it
        if verdict is None:
            return Verdict(f"it takes longer than {self._timeout_s:g} s to compile (--grammar-timeout).")
        return verdict

    async def _timed(self, constraint: Constraint) -> Verdict | None:
        """None when compiling takes too long. Reading the vocabulary and waiting for a thread are not counted in."""
        loop = asyncio.get_running_loop()
        guidance = self._guidance
        if guidance is None:
            guidance = await loop.run_in_executor(self._pool, self._built)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            return Verdict(busy=True)
        work = loop.run_in_executor(self._pool, self._verdict, guidance, constraint)
        work.add_done_callback(lambda _: self._slots.release())  # a compiler that is too slow keeps its thread busy
        done, _ = await asyncio.wait({work}, timeout=self._timeout_s)
        return work.result() if done else None

    def _verdict(self, guidance: Guidance, constraint: Constraint) -> Verdict:
        """In a thread: whether a constraint can be kept."""
        try:
            lark = lark_of_ebnf(constraint.lark) if constraint.unread else ""
            if len(lark) > MAX_BYTES:
                return Verdict(f"in Lark it is larger than {MAX_BYTES // 1024} KiB.")
            matcher = guidance.compile(grammar_of(lark or constraint.lark, special_ids=self._special_ids))
            if matcher.complete:
                return Verdict("it allows only the empty text.")
            _rehearse(matcher)
        except GrammarError as error:
            return Verdict(str(error))
        return Verdict(lark=lark)

    def _built(self) -> Guidance:
        with self._building:
            if self._guidance is None:
                self._guidance = Guidance(self._vocabulary, self._info.vocab_size, self._info.eos_token_ids)
            return self._guidance


def _rehearse(matcher: Matcher) -> None:
    """Follow the first tokens that are allowed. Raises GrammarError."""
    for _ in range(REHEARSED):
        if matcher.complete:
            return
        mask = matcher.without_end()
        first = len(mask) - len(mask.lstrip(b"\0"))
        matcher.advance(8 * first + (mask[first] & -mask[first]).bit_length() - 1)
