"""Compiles grammars in a background thread of the scheduler process, and caches the results."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future

from ebbtide.errors import GrammarError
from ebbtide.grammar import Guidance
from ebbtide.messages import UseVocabulary
from ebbtide.runtime.large_stack_threads import large_stack_pool
from ebbtide.tokenization.vocabulary import Vocabulary

from .grammar_state import Compiled

log = logging.getLogger(__name__)
MAX_CACHED = 128  # compiled grammars


class GrammarCompilerThread:
    """A ``GrammarCompiler`` based on llguidance.

    Compiles one grammar at a time, in the order of the calls of ``poll``.
    """

    def __init__(self, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._pool = large_stack_pool(1, "grammar")
        self._guidance: Future[Guidance] | None = None
        self._cache: OrderedDict[str, Future[Compiled]] = OrderedDict()
        self._times: list[float] = []

    def set_vocabulary(self, vocabulary: UseVocabulary) -> None:
        """See ``GrammarCompiler``."""
        pieces = Vocabulary(vocabulary.pieces, vocabulary.special_ids, vocabulary.eos_ids)
        self._cache.clear()
        self._guidance = self._pool.submit(Guidance, pieces, self._vocab_size, self._eos_ids)

    def poll(self, grammar: str) -> Compiled | None:
        """See ``GrammarCompiler``."""
        future = self._cache.get(grammar)
        if future is None:
            future = self._cache[grammar] = self._pool.submit(self._compile, grammar)
            self._evict_oldest()
        self._cache.move_to_end(grammar)
        return future.result() if future.done() else None

    def drain_durations(self) -> list[float]:
        """See ``GrammarCompiler``."""
        times, self._times = self._times, []
        return times

    def close(self) -> None:
        """Stop the thread."""
        self._pool.shutdown()

    def _compile(self, grammar: str) -> Compiled:
        if self._guidance is None:
            return Compiled(None, "the model's vocabulary is not known.")
        started = time.monotonic()
        try:
            return Compiled(self._guidance.result().compile(grammar))
        except GrammarError as error:
            return Compiled(None, str(error))
        except BaseException as error:  # a panic in llguidance is not an Exception
            log.exception("a grammar could not be compiled")
            return Compiled(None, f"its compilation failed ({type(error).__name__}).")
        finally:
            self._times.append(time.monotonic() - started)

    def _evict_oldest(self) -> None:
        """Evict the least recently used grammars.

        Grammars that are still being compiled stay, because requests would otherwise submit them again.
        """
        for grammar, future in list(self._cache.items()):
            if len(self._cache) <= MAX_CACHED:
                return
            if future.done():
                del self._cache[grammar]
