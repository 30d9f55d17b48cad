"""Grammars as llguidance knows them: compiled over one model's tokens, and matched token by token.

The only file that touches llguidance, but for its reader of GBNF. It knows bytes and token ids; it knows neither
requests nor HTTP. Compiling and masks leave the interpreter to other threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from .errors import GrammarError
from .tokenization.vocabulary import Vocabulary

MAX_MESSAGE = 300
OPTIONS = '%llguidance {"no_forcing": true}\n'  # a text that must come is left to the model to split into tokens
GAP = "GAP: /\\s{0,2}/\n"  # white space that models write around marks


@dataclass(frozen=True, slots=True)
class ReasoningPrefix:
    """What stands before a constraint that starts late: any text up to ``closes``. Either mark may be a control token.

    opens: the prefix begins with this or is left out; "" for one that the prompt has begun, which must end.
    """

    closes: str
    opens: str = ""


def lark_of_regex(regex: str) -> str:
    """A grammar of the texts that match ``regex`` as a whole, in Lark. Says nothing about its being valid."""
    written = json.loads(LLMatcher.grammar_from_regex(regex))
    lark: str = written["grammars"][0]["lark_grammar"]
    return lark


def special_ids(vocabulary: Vocabulary) -> dict[bytes, int]:
    """The control tokens by what they are written as: no text in a grammar ever matches one."""
    return {vocabulary.pieces[token]: token for token in vocabulary.special_ids}


def grammar_of(
    lark: str, *, special_ids: Mapping[bytes, int], after: ReasoningPrefix | None = None, instead: str = ""
) -> str:
    """What ``Guidance.compile`` takes, from a grammar in Lark.

    after: what stands before it. instead: rules in Lark, of which the one called ``instead`` may take its place.
    """
    if after is None and not instead:
        return json.dumps({"grammars": [{"lark_grammar": OPTIONS + lark}]})
    body = "(@body | instead)" if instead else "@body"
    head = f"start: {body}\n{GAP}" if after is None else _head(after, body, special_ids)
    body_grammar = {"name": "body", "lark_grammar": OPTIONS + lark}
    return json.dumps({"grammars": [{"lark_grammar": OPTIONS + head + instead}, body_grammar]})


def mark_in_lark(mark: str, special_ids: Mapping[bytes, int]) -> str:
    """A text or, if the model has one that is written so, a control token, as a part of a rule in Lark."""
    token = special_ids.get(mark.encode())
    return json.dumps(mark) if token is None else f"<[{token}]>"


def _head(prefix: ReasoningPrefix, body: str, special_ids: Mapping[bytes, int]) -> str:
    """The prefix in Lark, in front of ``body``."""
    closes = special_ids.get(prefix.closes.encode())
    inside = "before" if closes is None else f"/(.|\\n)*/ <[{closes}]>"
    rule = "" if closes is not None else f"before[suffix={json.dumps(prefix.closes)}]: /(.|\\n)*/\n"
    if not prefix.opens:
        return f"start: {inside} GAP {body}\n{rule}{GAP}"
    return f"start: (GAP {mark_in_lark(prefix.opens, special_ids)} {inside} GAP)? {body}\n{rule}{GAP}"


class Guidance:
    """One model's tokens. Building it takes a tenth of a second and more for a large vocabulary: not on a loop."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_ids: Iterable[int]) -> None:
        """vocab_size: logits of a row. eos_ids: what may follow a complete text, besides the vocabulary's own."""
        ends = {token for token in (*eos_ids, *vocabulary.eos_ids) if token < vocab_size}
        self._eos_ids = frozenset(ends or {vocab_size})  # one that no model can sample stands for no end at all
        special = [token for token in vocabulary.special_ids if token < vocab_size]
        pieces = vocabulary.pieces[:vocab_size]
        pieces += [b""] * (vocab_size + 1 - len(pieces))  # masks must cover the logits that belong to no token, too
        tokens = _Tokens(pieces, special, min(self._eos_ids))
        self._tokenizer = LLTokenizer(tokens, eos_token=sorted(self._eos_ids))
        self._limits = LLParserLimits(verbose_errors=False)

    def compile(self, grammar: str) -> Matcher:
        """A matcher before its first token. Raises GrammarError with one sentence."""
        inner = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if inner.is_error():
            raise GrammarError(_sentence(inner.get_error()))
        warnings = inner.get_grammar_warnings()
        if warnings:
            raise GrammarError(_sentence(warnings[0]))  # what it leaves out would go unchecked
        return Matcher(inner, self._eos_ids)


class _Tokens(TokenizerWrapper):  # type: ignore[misc]  # mypy is told to skip llguidance
    """A vocabulary in the form that llguidance reads."""

    def __init__(self, tokens: list[bytes], special_ids: list[int], eos_id: int) -> None:
        # Not the base class's: it asks for a tokenizer, and with "no_forcing" nothing is ever tokenised.
        self.tokens = tokens
        self.special_token_ids = special_ids
        self.eos_token_id = eos_id
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True

    def __call__(self, text: str | bytes) -> list[int]:
        raise GrammarError("a grammar without no_forcing")


class Matcher:
    """Where a text stands in a grammar. What it says is a function of the grammar and the tokens so far.

    mask: one bit a token id, least significant first: what may come next; b"" once nothing may.
    complete: nothing but the end may follow.
    """

    __slots__ = ("_eos_ids", "_inner", "complete", "mask")

    def __init__(self, inner: LLMatcher, eos_ids: frozenset[int]) -> None:
        self._inner = inner
        self._eos_ids = eos_ids
        self.complete = False
        self.mask = b""
        self._look()

    def fresh(self) -> Matcher:
        """An independent matcher in the same place."""
        copy = Matcher.__new__(Matcher)
        copy._inner = self._inner.deep_copy()
        copy._eos_ids, copy.complete, copy.mask = self._eos_ids, self.complete, self.mask
        return copy

    def allows(self, token: int) -> bool:
        """Whether ``token`` may come next."""
        return 0 <= token >> 3 < len(self.mask) and bool(self.mask[token >> 3] >> (token & 7) & 1)

    def advance(self, token: int) -> None:
        """Go on by one token. Raises GrammarError; the matcher is of no use then."""
        if not self.allows(token):
            raise GrammarError(f"Token {token} is not allowed here.")
        if token in self._eos_ids:
            self.complete, self.mask = True, b""
            return
        if not self._inner.consume_token(token):
            raise GrammarError(_sentence(self._inner.get_error()))
        self._look()

    def without_end(self) -> bytes:
        """The mask without the tokens that end a text. Not empty unless ``complete``."""
        rest = bytearray(self.mask)
        for token in self._eos_ids:
            if token >> 3 < len(rest):
                rest[token >> 3] &= ~(1 << (token & 7))
        return bytes(rest)

    def _look(self) -> None:
        """Find out what may come next."""
        mask = self._inner.compute_bitmask()
        if self._inner.is_error():
            raise GrammarError(_sentence(self._inner.get_error()))
        self.mask = mask
        if not mask.strip(b"\0"):
            raise GrammarError("Nothing may follow, and the text is not complete.")
        self.complete = self._inner.is_accepting() and not self.without_end().strip(b"\0")
        if self.complete:
            self.mask = b""


def _sentence(text: str) -> str:
    """The first line of an llguidance message without the place in our own Lark text."""
    line = text.partition("\n")[0].removeprefix("at ")
    _, place, rest = line.partition("): ")
    line = rest if place and line[:1].isdigit() else line
    known = {"NoExtensionBias": "No text satisfies it.", "NoExtension": "No text satisfies it."}
    return known.get(line, line.removeprefix("failed to compile JSON schema: "))[:MAX_MESSAGE]
