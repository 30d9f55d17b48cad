"""The thread that compiles grammars beside the scheduler's loop, and remembers the latest ones."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future

from ebbtide.errors import GrammarError
from ebbtide.grammar import Guidance
from ebbtide.messages import UseVocabulary
from ebbtide.runtime.large_stack_threads import deep_pool
from ebbtide.tokenization.vocabulary import Vocabulary

from .grammar_state import Compiled

MAX_REMEMBERED = 128


class CompilerThread:
    """``GrammarCompiler`` over llguidance. Grammars are compiled in the order in which they are asked for."""

    def __init__(self, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._pool = deep_pool(1, "grammar")
        self._guidance: Future[Guidance] | None = None
        self._known: OrderedDict[str, Future[Compiled]] = OrderedDict()
        self._times: list[float] = []

    def use(self, vocabulary: UseVocabulary) -> None:
        """See ``GrammarCompiler``."""
        pieces = Vocabulary(vocabulary.pieces, vocabulary.special_ids, vocabulary.eos_ids)
        self._known.clear()
        self._guidance = self._pool.submit(Guidance, pieces, self._vocab_size, self._eos_ids)

    def poll(self, grammar: str) -> Compiled | None:
        """See ``GrammarCompiler``."""
        future = self._known.get(grammar)
        if future is None:
            future = self._known[grammar] = self._pool.submit(self._compile, grammar)
            self._forget_old()
        self._known.move_to_end(grammar)
        return future.result() if future.done() else None

    def take_times(self) -> list[float]:
        """See ``GrammarCompiler``."""
        times, self._times = self._times, []
        return times

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()

    def _compile(self, grammar: str) -> Compiled:
        if self._guidance is None:
            return Compiled(None, "The model's tokens are not known.")
        started = time.monotonic()
        try:
            return Compiled(self._guidance.result().compile(grammar))
        except GrammarError as error:
            return Compiled(None, str(error))
        finally:
            self._times.append(time.monotonic() - started)

    def _forget_old(self) -> None:
        """One that is not done yet stays: who waits for it would ask for it again and again."""
        for grammar, future in list(self._known.items()):
            if len(self._known) <= MAX_REMEMBERED:
                return
            if future.done():
                del self._known[grammar]
