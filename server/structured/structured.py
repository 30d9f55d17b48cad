"""Compiles the constraints of requests in threads, within a time limit, and caches the results.

A request whose constraint cannot be compiled is rejected, because no request may run without its constraint.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

from ebbtide.errors import GrammarError, Rejected
from ebbtide.grammar import GrammarMatcher, Guidance, ReasoningPrefix, grammar_of, mark_in_lark, special_ids
from ebbtide.messages import RunnerInfo
from ebbtide.runtime.large_stack_threads import large_stack_pool
from ebbtide.tokenization.vocabulary import Vocabulary

from .constraints import MAX_BYTES, Constraint
from .gbnf import lark_of_ebnf

NUM_THREADS = 2
MAX_REMEMBERED = 1000
MAX_READ_REMEMBERED = 16 * 1024  # characters; a longer converted grammar is not cached
DRY_RUN_TOKENS = 16  # a grammar that is too expensive fails within this number of tokens
BUSY = "All threads that compile grammars are busy (--grammar-timeout). Try again later."


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The result of compiling a constraint.

    Attributes:
        problem: the reason why the constraint cannot be used; "" if it can be used.
        lark: the grammar in Lark, if the constraint is the client's own grammar; else "".
        busy: True if no thread became free to compile the constraint.
    """

    problem: str = ""
    lark: str = ""
    busy: bool = False


class StructuredOutput:
    """Compiles grammars for one model. The object must be used on only one event loop."""

    def __init__(self, vocabulary: Vocabulary, info: RunnerInfo, timeout_s: float) -> None:
        self._vocabulary = vocabulary
        self._info = info
        self._timeout_s = timeout_s
        self._special_ids = special_ids(vocabulary, info.vocab_size)
        self._guidance: Guidance | None = None
        self._building = threading.Lock()
        self._pool = large_stack_pool(NUM_THREADS, "grammar")
        self._slots = asyncio.Semaphore(NUM_THREADS)
        self._results: OrderedDict[bytes, asyncio.Task[CompileResult]] = OrderedDict()

    async def compile(
        self, constraint: Constraint, *, prefix: ReasoningPrefix | None = None, alternative: str = ""
    ) -> str:
        """Return the value of ``PreparedRequest.grammar`` for a constraint.

        Raises Rejected if the constraint cannot be compiled.

        prefix: the reasoning that may precede the constrained output; None if there is none.
        alternative: see ``ebbtide.grammar.grammar_of``. It is not compiled here, so it must be valid.
        """
        result = await asyncio.shield(self._result_of(constraint))
        if result.busy:
            raise Rejected(BUSY, status=503, kind="overloaded_error", code="compilers_busy", retry_after_s=5)
        if result.problem:
            raise Rejected(
                f"'{constraint.param}' cannot be used: {result.problem}", param=constraint.param, code="invalid_value"
            )
        lark = result.lark if constraint.unread else constraint.lark
        return grammar_of(lark, prefix=prefix, alternative=alternative, special_ids=self._special_ids)

    def mark(self, text: str) -> str:
        """Return a marker as a Lark expression: a control token or the marker's text."""
        return mark_in_lark(text, self._special_ids)

    def close(self) -> None:
        """Stop the threads after their current work, which takes at most a few seconds."""
        self._pool.shutdown(cancel_futures=True)

    def _result_of(self, constraint: Constraint) -> asyncio.Task[CompileResult]:
        """Return the task that compiles a constraint. Requests with equal constraints share the task."""
        key = hashlib.sha256(b"%d" % constraint.unread + constraint.lark.encode()).digest()
        task = self._results.get(key)
        if task is None:
            task = self._results[key] = asyncio.create_task(self._compile_once(key, constraint), name="grammar")
        self._results.move_to_end(key)
        if len(self._results) > MAX_REMEMBERED:
            self._results.popitem(last=False)
        return task

    async def _compile_once(self, key: bytes, constraint: Constraint) -> CompileResult:
        result = await self._compile_in_time(constraint)
        if result is None or result.busy or len(result.lark) > MAX_READ_REMEMBERED:
            self._results.pop(key, None)  # a later attempt may succeed when the machine is less loaded
        if result is None:
            return CompileResult(f"it takes longer than {self._timeout_s:g} s to compile (--grammar-timeout).")
        return result

    async def _compile_in_time(self, constraint: Constraint) -> CompileResult | None:
        """Compile a constraint. Return None if the compilation takes too long.

        The time to load the vocabulary and to wait for a thread is not counted.
        """
        loop = asyncio.get_running_loop()
        guidance = self._guidance
        if guidance is None:
            guidance = await loop.run_in_executor(self._pool, self._load_guidance)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            return CompileResult(busy=True)
        work = loop.run_in_executor(self._pool, self._compile_in_thread, guidance, constraint)
        # A compilation that exceeds the time limit still occupies its thread.
        work.add_done_callback(lambda _: self._slots.release())
        done, _ = await asyncio.wait({work}, timeout=self._timeout_s)
        return work.result() if done else None

    def _compile_in_thread(self, guidance: Guidance, constraint: Constraint) -> CompileResult:
        """Compile a constraint, to check that it can be enforced. Called in a compile thread."""
        try:
            lark = lark_of_ebnf(constraint.lark) if constraint.unread else ""
            if len(lark) > MAX_BYTES:
                return CompileResult(f"converted to Lark, it is larger than {MAX_BYTES // 1024} KiB.")
            matcher = guidance.compile(grammar_of(lark or constraint.lark, special_ids=self._special_ids))
            if matcher.complete:
                return CompileResult("it allows only empty output.")
            _dry_run(matcher)
        except GrammarError as error:
            return CompileResult(str(error))
        return CompileResult(lark=lark)

    def _load_guidance(self) -> Guidance:
        with self._building:
            if self._guidance is None:
                self._guidance = Guidance(self._vocabulary, self._info.vocab_size, self._info.eos_token_ids)
            return self._guidance


def _dry_run(matcher: GrammarMatcher) -> None:
    """Advance by at most ``DRY_RUN_TOKENS`` allowed tokens. Raises GrammarError if that fails."""
    for _ in range(DRY_RUN_TOKENS):
        if matcher.complete:
            return
        mask = matcher.without_end()
        first = len(mask) - len(mask.lstrip(b"\0"))
        matcher.advance(8 * first + (mask[first] & -mask[first]).bit_length() - 1)
