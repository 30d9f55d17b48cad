"""The compiler thread: polling never blocks, each grammar is compiled once, and no result is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ebbtide.grammar import Guidance, grammar_of
from ebbtide.messages import UseVocabulary
from ebbtide.scheduler.grammar import grammar_compiler as compiling
from ebbtide.scheduler.grammar.grammar_compiler import GrammarCompilerThread
from ebbtide.scheduler.grammar.grammar_state import Compiled
from ebbtide.tokenization.vocabulary import SIM_EOS, SIM_VOCAB_SIZE, sim_vocabulary

VOCABULARY = sim_vocabulary()
TOLD = UseVocabulary(VOCABULARY.pieces, VOCABULARY.special_ids, VOCABULARY.eos_ids)
PATIENCE_S = 20


class Gate:
    """Blocks every compilation until it is opened, and signals the start of a compilation."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()
        self.compiled: list[str] = []
        self.open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate, compile_now = Gate(), Guidance.compile

    def held(self: Guidance, grammar: str) -> object:
        gate.compiled.append(grammar)
        gate.begun.set()
        assert gate.open.wait(PATIENCE_S)
        return compile_now(self, grammar)

    monkeypatch.setattr(Guidance, "compile", held)
    return gate


@pytest.fixture
def compiler(gate: Gate) -> Iterator[GrammarCompilerThread]:
    compiler = GrammarCompilerThread(SIM_VOCAB_SIZE, (SIM_EOS,))
    yield compiler
    gate.open.set()
    compiler.close()


def grammar(word: str) -> str:
    return grammar_of(f'start: "{word}"', special_ids={})


def outcome(compiler: GrammarCompilerThread, text: str) -> Compiled:
    """Poll until the result is known."""
    pause = threading.Event()
    for _ in range(PATIENCE_S * 500):
        compiled = compiler.poll(text)
        if compiled is not None:
            return compiled
        pause.wait(0.002)
    raise AssertionError("never compiled")


def test_the_first_poll_starts_the_compilation_and_does_not_block(compiler: GrammarCompilerThread, gate: Gate) -> None:
    compiler.set_vocabulary(TOLD)
    gate.open.clear()
    assert compiler.poll(grammar("a")) is None
    assert gate.begun.wait(PATIENCE_S)
    assert compiler.poll(grammar("a")) is None
    assert compiler.drain_durations() == []
    gate.open.set()
    matcher = outcome(compiler, grammar("a")).matcher
    assert matcher is not None
    assert matcher.mask[ord("a") // 8] == 1 << ord("a") % 8
    assert gate.compiled == [grammar("a")]
    assert len(compiler.drain_durations()) == 1
    assert compiler.drain_durations() == []


def test_an_invalid_grammar_has_its_error_as_result(compiler: GrammarCompilerThread) -> None:
    compiler.set_vocabulary(TOLD)
    compiled = outcome(compiler, grammar_of("start: /(/", special_ids={}))
    assert compiled.matcher is None
    assert "invalid regex" in compiled.problem


def test_without_the_vocabulary_nothing_is_compiled(compiler: GrammarCompilerThread) -> None:
    assert outcome(compiler, grammar("a")).problem == "the model's vocabulary is not known."
    compiler.set_vocabulary(TOLD)
    assert outcome(compiler, grammar("a")).matcher is not None


def test_the_most_recently_used_grammars_are_cached(
    compiler: GrammarCompilerThread, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "MAX_CACHED", 3)
    compiler.set_vocabulary(TOLD)
    for word in ("a", "b", "c", "a", "d"):
        outcome(compiler, grammar(word))
    assert len(gate.compiled) == 4
    outcome(compiler, grammar("a"))
    assert len(gate.compiled) == 4
    outcome(compiler, grammar("b"))
    assert len(gate.compiled) == 5


def test_a_grammar_still_being_compiled_is_not_evicted(
    compiler: GrammarCompilerThread, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "MAX_CACHED", 1)
    compiler.set_vocabulary(TOLD)
    gate.open.clear()
    words = [grammar(word) for word in "abcde"]
    assert [compiler.poll(word) for word in words] == [None] * 5
    gate.open.set()
    assert [outcome(compiler, word).matcher is not None for word in words] == [True] * 5
    assert sorted(gate.compiled) == words
