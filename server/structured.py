"""Constraints made sure of before a request goes on: compiled off the event loop, within a time limit, and remembered.

Nothing ever runs without the constraint that it asked for: what cannot be compiled is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from ebbtide.errors import GrammarError, Rejected
from ebbtide.guidance import Guidance, Matcher, Preface, grammar_of, mark_in_lark, special_ids
from ebbtide.messages import RunnerInfo
from ebbtide.vocabulary import Vocabulary

from .constraints import Constraint, ConstraintFields, constraint_of

NUM_THREADS = 2
MAX_REMEMBERED = 1000
REHEARSED = 16  # tokens that a grammar is tried on: one that is too costly shows it early


class StructuredOutput:
    """The grammars of one model. Used on one event loop."""

    def __init__(self, vocabulary: Vocabulary, info: RunnerInfo, timeout_s: float) -> None:
        self._vocabulary = vocabulary
        self._info = info
        self._timeout_s = timeout_s
        self._special_ids = special_ids(vocabulary)
        self._guidance: Guidance | None = None
        self._building = threading.Lock()
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")
        self._slots = asyncio.Semaphore(NUM_THREADS)
        self._verdicts: OrderedDict[bytes, asyncio.Task[str]] = OrderedDict()

    async def grammar_of(self, fields: ConstraintFields, *, after: Preface | None = None, instead: str = "") -> str:
        """``Order.grammar`` for a request; "" when it asks for no constraint. Raises Rejected."""
        constraint = constraint_of(fields)
        return "" if constraint is None else await self.compile(constraint, after=after, instead=instead)

    async def compile(self, constraint: Constraint, *, after: Preface | None = None, instead: str = "") -> str:
        """``Order.grammar`` for a constraint that is sure to work. Raises Rejected.

        after: what may stand in front of it: a model's reasoning. instead: see ``grammar_of``; sure to work as well.
        """
        problem = await asyncio.shield(self._judged(constraint.lark))
        if problem:
            raise Rejected(
                f"'{constraint.param}' cannot be used: {problem}", param=constraint.param, code="invalid_value"
            )
        return grammar_of(constraint.lark, after=after, instead=instead, special_ids=self._special_ids)

    def mark(self, text: str) -> str:
        """What a mark of the model's is in Lark: a text or a control token."""
        return mark_in_lark(text, self._special_ids)

    def close(self) -> None:
        """End the threads; what they work on is finished first, and takes seconds at most."""
        self._pool.shutdown(cancel_futures=True)

    def _judged(self, lark: str) -> asyncio.Task[str]:
        """What is wrong with a grammar, "" for nothing: found out once for all requests that have the same."""
        key = hashlib.sha256(lark.encode()).digest()
        task = self._verdicts.get(key)
        if task is None:
            task = self._verdicts[key] = asyncio.create_task(self._judge(key, lark), name="grammar")
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > MAX_REMEMBERED:
            self._verdicts.popitem(last=False)
        return task

    async def _judge(self, key: bytes, lark: str) -> str:
        loop = asyncio.get_running_loop()
        await self._slots.acquire()  # the time limit is for compiling, not for waiting, nor for reading the vocabulary
        guidance = await loop.run_in_executor(self._pool, self._built)
        work = loop.run_in_executor(self._pool, self._problem, guidance, lark)
        work.add_done_callback(lambda _: self._slots.release())  # a compiler that is too slow keeps its thread busy
        done, _ = await asyncio.wait({work}, timeout=self._timeout_s)
        if not done:
            self._verdicts.pop(key, None)  # another time the machine may have more of its time for it
            return f"it takes longer than {self._timeout_s:g} s to compile (--grammar-timeout)."
        return work.result()

    def _problem(self, guidance: Guidance, lark: str) -> str:
        """In a thread: the compiler's objection to a grammar, "" for none."""
        try:
            _rehearse(guidance.compile(grammar_of(lark, special_ids=self._special_ids)))
        except GrammarError as error:
            return str(error)
        return ""

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
