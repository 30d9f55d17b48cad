"""llguidance through ebbtide.grammar: masks, ends, control tokens, and random texts of random schemas."""

from __future__ import annotations

import json
import random

import pytest

from ebbtide.errors import GrammarError
from ebbtide.grammar import GrammarMatcher, Guidance, grammar_of, lark_of_regex
from ebbtide.server.structured.constraints import schema_constraint
from ebbtide.server.structured.gbnf import lark_of_ebnf
from ebbtide.tokenization.vocabulary import SIM_EOS, SIM_VOCAB_SIZE, Vocabulary, sim_vocabulary

from ..http.schemas import check_valid, random_schema

GUIDANCE = Guidance(sim_vocabulary(), SIM_VOCAB_SIZE, ())


def matcher(lark: str, guidance: Guidance = GUIDANCE) -> GrammarMatcher:
    return guidance.compile(grammar_of(lark, special_ids={}))


def allowed(place: GrammarMatcher) -> set[int]:
    return {token for token in range(8 * len(place.mask)) if place.allows(token)}


def test_a_mask_has_the_bits_of_what_may_follow() -> None:
    place = matcher('start: "ab" | "ac" | "d"')
    assert allowed(place) == {ord("a"), ord("d")}
    place.advance(ord("a"))
    assert allowed(place) == {ord("b"), ord("c")}
    assert not place.complete
    place.advance(ord("c"))
    assert (place.complete, place.mask) == (True, b"")


def test_the_end_is_allowed_where_a_text_may_end_and_completes_it() -> None:
    place = matcher("start: /[0-9]+/")
    assert not place.allows(SIM_EOS)
    place.advance(ord("7"))
    assert allowed(place) == {*b"0123456789", SIM_EOS}
    ended = place.copy()
    ended.advance(SIM_EOS)
    assert (ended.complete, place.complete) == (True, False)
    place.advance(ord("8"))
    open_end = place.without_end()
    assert {token for token in range(8 * len(open_end)) if open_end[token // 8] >> token % 8 & 1} == {*b"0123456789"}


@pytest.mark.parametrize("token", [-1, ord("x"), SIM_EOS, 257, 259, 300, 10**6])
def test_a_token_that_is_not_allowed_is_an_error(token: int) -> None:
    with pytest.raises(GrammarError, match=f"Token {token} is not allowed here"):
        matcher('start: "ab"').advance(token)


def test_every_end_token_of_the_model_can_end_a_grammar() -> None:
    guidance = Guidance(sim_vocabulary(), SIM_VOCAB_SIZE, (258,))
    place = matcher("start: /[0-9]+/", guidance)
    place.advance(ord("7"))
    assert allowed(place) == {*b"0123456789", SIM_EOS, 258}


def test_control_tokens_are_not_text() -> None:
    place = matcher("start: /(.|\\n)+/")
    assert not allowed(place) & {SIM_EOS, 257, 258, 259}
    for token in b"<|user|>":
        place.advance(token)


def test_ids_without_text_are_never_allowed() -> None:
    """A model may have more logits than its tokenizer has tokens, or fewer."""
    pieces = [b"a", b"", b"ab", b"b", b"</s>"]
    larger = Guidance(Vocabulary(pieces, [4], [4]), 40, ())
    assert allowed(matcher('start: "ab"', larger)) == {0, 2}
    assert len(matcher('start: "ab"', larger).mask) * 8 >= 40
    smaller = Guidance(Vocabulary([b"a", b"b", b"</s>", b"ab"], [2], [2, 9]), 3, ())
    assert allowed(matcher('start: "ab"', smaller)) == {0}


def test_a_model_without_an_end_token_still_ends_when_nothing_can_follow() -> None:
    guidance = Guidance(Vocabulary([b"a", b"b"], [], []), 2, ())
    place = matcher('start: "a" /b*/ "a"', guidance)
    for token in (0, 1, 0):
        assert not place.complete
        assert place.without_end()[0] & 0b11
        place.advance(token)
    assert place.complete
    longer = matcher("start: /a+/", guidance)
    longer.advance(0)
    assert not longer.complete


def test_a_longer_token_may_cover_several_parts_of_a_grammar() -> None:
    pieces = [b'{"', b'{"a', b'a":', b'":', b" 1", b"1", b"}", b"1}", b"x", b"</s>"]
    guidance = Guidance(Vocabulary(pieces, [9], [9]), 10, ())
    place = matcher('start: %json {"const": {"a": 1}}', guidance)
    seen = []
    for token in (1, 3, 4, 6):
        seen.append(allowed(place))
        place.advance(token)
    assert seen == [{0, 1}, {3}, {4, 5, 7}, {6}]
    assert place.complete


@pytest.mark.parametrize(
    ("lark", "message"),
    [
        ("start: /(/", 'invalid regex "(" (in regex): regex parse error:'),
        ("start: start", "No text satisfies it."),
        ('start: %json {"type": "odd"}', "Invalid type: odd"),
        ('start: %json {"not": {}}', 'Unimplemented keys: ["not"]'),
        ('start: %json {"not": {}, "x-guidance": {"lenient": true}}', 'Unimplemented keys: ["not"]'),
        ("start: a", 'unknown name: "a"'),
    ],
)
def test_a_problem_is_one_short_sentence(lark: str, message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        matcher(lark)
    assert str(caught.value) == message


def test_text_that_is_not_a_grammar_is_an_error() -> None:
    for grammar in ("", "{}", '{"grammars": []}', "[", "\0"):
        with pytest.raises(GrammarError):
            GUIDANCE.compile(grammar)


def test_a_grammar_that_would_need_a_tokenizer_is_an_error() -> None:
    with pytest.raises(GrammarError):
        GUIDANCE.compile(json.dumps({"grammars": [{"lark_grammar": 'start: "abc"'}]}))


def test_regexes_and_gbnf_become_lark() -> None:
    assert lark_of_regex("a/b") == "start: /a\\/b/"
    assert "start:" in lark_of_ebnf('root ::= "a"')
    assert lark_of_ebnf('start: "a"') == 'start: "a"'
    for text in ("", "x", "root ::= (", '%llguidance {}\nstart: "a"', "root ::= " + "(" * 5000 + '"a"' + ")" * 5000):
        with pytest.raises(GrammarError):
            lark_of_ebnf(text)


def random_text(place: GrammarMatcher, rng: random.Random) -> str | None:
    """A random text of the grammar, biased towards short ones; None if no end was reached."""
    text = bytearray()
    for _ in range(600):
        tokens = sorted(allowed(place))
        closing = [token for token in tokens if token == SIM_EOS or token in b'"}],']
        token = rng.choice(closing if closing and rng.random() < 0.7 else tokens)
        place.advance(token)
        text += bytes([token]) if token < 256 else b""
        if place.complete:
            return text.decode()
    return None


def test_random_texts_of_random_schemas_are_valid() -> None:
    ended = 0
    for seed in range(60):
        schema = random_schema(seed)
        text = random_text(matcher(schema_constraint(schema, "schema").lark), random.Random(seed))
        if text is not None:
            check_valid(text, schema)
            ended += 1
    assert ended > 50


def test_the_mask_does_not_depend_on_how_its_position_was_reached() -> None:
    """Copies share the compiler's cache; a mask must not depend on which copy filled it."""
    for seed in range(10):
        lark = schema_constraint(random_schema(seed), "schema").lark
        shared = matcher(lark)
        for walk in range(3):
            rng = random.Random(walk)
            one, other = shared.copy(), matcher(lark)
            for _ in range(80):
                assert one.mask == other.mask
                if one.complete:
                    break
                token = rng.choice(sorted(allowed(one)))
                one.advance(token)
                other.advance(token)
