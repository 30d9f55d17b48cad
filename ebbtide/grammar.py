"""Grammars, compiled by llguidance for one model's vocabulary and matched token by token.

No other file uses llguidance, except the GBNF converter. The module handles bytes and token ids, and does not
depend on requests or HTTP. Compiling a grammar and computing a mask release the GIL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from .errors import GrammarError
from .tokenization.vocabulary import Vocabulary

MAX_MESSAGE = 300
OPTIONS = '%llguidance {"no_forcing": true}\n'  # the model chooses how forced text is tokenized
GAP = "GAP: /\\s{0,2}/\n"  # whitespace that models write around markers


@dataclass(frozen=True, slots=True)
class ReasoningPrefix:
    """Free text before the constrained part of an output. A marker may be a control token.

    Attributes:
        closes: marker that ends the prefix.
        opens: marker that starts the prefix, which is then optional; "" if the prompt has already started it.
    """

    closes: str
    opens: str = ""


def lark_of_regex(regex: str) -> str:
    """Convert ``regex`` to a Lark grammar that matches whole strings.

    The function does not check that the regex is valid.
    """
    written = json.loads(LLMatcher.grammar_from_regex(regex))
    lark: str = written["grammars"][0]["lark_grammar"]
    return lark


def special_ids(vocabulary: Vocabulary, vocab_size: int) -> dict[bytes, int]:
    """Return text → id of the control tokens below ``vocab_size``.

    Plain text in a grammar never matches a control token.
    """
    return {vocabulary.pieces[token]: token for token in vocabulary.special_ids if token < vocab_size}


def grammar_of(
    lark: str, *, special_ids: Mapping[bytes, int], prefix: ReasoningPrefix | None = None, alternative: str = ""
) -> str:
    """Build the input of ``Guidance.compile`` from a Lark grammar.

    prefix: free text before the constrained part. alternative: Lark rules; the rule named ``alternative`` may match in
    place of the grammar.
    """
    if prefix is None and not alternative:
        return json.dumps({"grammars": [{"lark_grammar": OPTIONS + lark}]})
    body = "(@body | alternative)" if alternative else "@body"
    head = f"start: {body}\n{GAP}" if prefix is None else _head(prefix, body, special_ids)
    body_grammar = {"name": "body", "lark_grammar": OPTIONS + lark}
    return json.dumps({"grammars": [{"lark_grammar": OPTIONS + head + alternative}, body_grammar]})


def mark_in_lark(mark: str, special_ids: Mapping[bytes, int]) -> str:
    """Return a marker in Lark syntax: the control token with this text if the model has one, else a string literal."""
    token = special_ids.get(mark.encode())
    return json.dumps(mark) if token is None else f"<[{token}]>"


def _head(prefix: ReasoningPrefix, body: str, special_ids: Mapping[bytes, int]) -> str:
    """Return Lark rules in which ``start`` matches the prefix and then ``body``."""
    closes = special_ids.get(prefix.closes.encode())
    inside = "before" if closes is None else f"/(.|\\n)*/ <[{closes}]>"
    rule = "" if closes is not None else f"before[suffix={json.dumps(prefix.closes)}]: /(.|\\n)*/\n"
    if not prefix.opens:
        return f"start: {inside} GAP {body}\n{rule}{GAP}"
    return f"start: (GAP {mark_in_lark(prefix.opens, special_ids)} {inside} GAP)? {body}\n{rule}{GAP}"


class Guidance:
    """Compiles grammars for one model's vocabulary.

    Construction takes 0.1 s or more for a large vocabulary: do not call it on an event loop.
    """

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_ids: Iterable[int]) -> None:
        """vocab_size: number of logits per row. eos_ids: end tokens in addition to the vocabulary's own."""
        ends = {token for token in (*eos_ids, *vocabulary.eos_ids) if token < vocab_size}
        self._eos_ids = frozenset(ends or {vocab_size})  # without an end token: an id that the model cannot sample
        special = [token for token in vocabulary.special_ids if token < vocab_size]
        pieces = vocabulary.pieces[:vocab_size]
        pieces += [b""] * (vocab_size + 1 - len(pieces))  # a mask has a bit for every logit, even without a token
        tokens = _Tokens(pieces, special, min(self._eos_ids))
        self._tokenizer = LLTokenizer(tokens, eos_token=sorted(self._eos_ids))
        self._limits = LLParserLimits(verbose_errors=False)

    def compile(self, grammar: str) -> GrammarMatcher:
        """Return a matcher that has not consumed any token.

        Raises GrammarError, with a one-sentence message, if the grammar is invalid or llguidance does not enforce all
        of it.
        """
        inner = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if inner.is_error():
            raise GrammarError(_sentence(inner.get_error()))
        warnings = inner.get_grammar_warnings()
        if warnings:
            raise GrammarError(_sentence(warnings[0]))  # llguidance warns if it does not enforce a part of the grammar
        return GrammarMatcher(inner, self._eos_ids)


class _Tokens(TokenizerWrapper):  # type: ignore[misc]  # mypy skips llguidance
    """A vocabulary with the attributes that llguidance expects of a tokenizer."""

    def __init__(self, tokens: list[bytes], special_ids: list[int], eos_id: int) -> None:
        # The base class's __init__ needs a tokenizer, but with "no_forcing" llguidance never tokenizes text.
        self.tokens = tokens
        self.special_token_ids = special_ids
        self.eos_token_id = eos_id
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True

    def __call__(self, text: str | bytes) -> list[int]:
        raise GrammarError("The grammar lacks the option no_forcing.")


class GrammarMatcher:
    """The position of one output in a grammar. It depends only on the grammar and the tokens consumed so far.

    Attributes:
        mask: tokens that may come next, one bit per token id, least significant bit first; b"" if none may.
        complete: True if no token other than an end token may follow.
    """

    __slots__ = ("_eos_ids", "_inner", "complete", "mask")

    def __init__(self, inner: LLMatcher, eos_ids: frozenset[int]) -> None:
        self._inner = inner
        self._eos_ids = eos_ids
        self.complete = False
        self.mask = b""
        self._update_mask()

    def copy(self) -> GrammarMatcher:
        """Return a second matcher at the same position that advances independently."""
        matcher = GrammarMatcher.__new__(GrammarMatcher)
        matcher._inner = self._inner.deep_copy()
        matcher._eos_ids, matcher.complete, matcher.mask = self._eos_ids, self.complete, self.mask
        return matcher

    def allows(self, token: int) -> bool:
        """Return True if ``token`` may come next."""
        return 0 <= token >> 3 < len(self.mask) and bool(self.mask[token >> 3] >> (token & 7) & 1)

    def advance(self, token: int) -> None:
        """Consume one token. Raises GrammarError if the token is not allowed; the matcher is unusable afterwards."""
        if not self.allows(token):
            raise GrammarError(f"Token {token} is not allowed here.")
        if token in self._eos_ids:
            self.complete, self.mask = True, b""
            return
        if not self._inner.consume_token(token):
            raise GrammarError(_sentence(self._inner.get_error()))
        self._update_mask()

    def without_end(self) -> bytes:
        """Return the mask without the end tokens; it allows at least one token unless ``complete`` is True."""
        rest = bytearray(self.mask)
        for token in self._eos_ids:
            if token >> 3 < len(rest):
                rest[token >> 3] &= ~(1 << (token & 7))
        return bytes(rest)

    def _update_mask(self) -> None:
        """Set ``mask`` and ``complete`` for the current position. Raises GrammarError if no token may follow."""
        mask = self._inner.compute_bitmask()
        if self._inner.is_error():
            raise GrammarError(_sentence(self._inner.get_error()))
        self.mask = mask
        if not mask.strip(b"\0"):
            raise GrammarError("No token may follow, but the text is incomplete.")
        self.complete = self._inner.is_accepting() and not self.without_end().strip(b"\0")
        if self.complete:
            self.mask = b""


def _sentence(text: str) -> str:
    """Return the first line of an llguidance message without its position in the generated Lark text."""
    line = text.partition("\n")[0].removeprefix("at ")
    _, place, rest = line.partition("): ")
    line = rest if place and line[:1].isdigit() else line
    known = {"NoExtensionBias": "No text satisfies it.", "NoExtension": "No text satisfies it."}
    return known.get(line, line.removeprefix("failed to compile JSON schema: "))[:MAX_MESSAGE]
