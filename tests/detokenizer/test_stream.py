import codecs
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebbtide.detokenizer.pieces import Pieces
from ebbtide.detokenizer.stream import TextStream
from ebbtide.messages import StreamStart, TextParams
from ebbtide.tokenization.vocabulary import SIM_EOS, Vocabulary, sim_vocabulary

SIM = Pieces(sim_vocabulary())
HAND = "👩🏽‍🚀 日本語 naïve e\u0301 שלום ★"
WORDS = [
    b"",
    b" ",
    b"a",
    b"b",
    b"ab",
    b"abc",
    b"\n\n",
    b"\xe2",
    b"\x98",
    b"\x85",
    b"\xf0\x9f",
    b"\x91\xa9",
    b"\xcc\x81e",
]
WORDS += ["日本".encode(), "本".encode()[:2], "é".encode(), b"\xff", b"<s>"]
WORD_PIECES = Pieces(Vocabulary(pieces=WORDS, special_ids=[len(WORDS) - 1], eos_ids=[len(WORDS) - 1]))


def start(*, prompt: bytes = b"", **text: object) -> StreamStart:
    return StreamStart(TextParams(**text), list(prompt[-8:]), 0)  # type: ignore[arg-type]


def stream(*, prompt: bytes = b"", **text: object) -> TextStream:
    return TextStream(SIM, start(prompt=prompt, **text))


def run(stream: TextStream, items: list[list[int]]) -> tuple[list[str], int, str | None]:
    """Return (released texts, number of output tokens, stop string)."""
    texts = []
    for tokens in items:
        released = stream.push(tokens)
        texts.append(released.text)
        if released.stop is not None:
            return texts, stream.num_tokens, released.stop
    return [*texts, stream.flush()], stream.num_tokens, None


def one_by_one(data: bytes) -> list[list[int]]:
    return [[byte] for byte in data]


def reference(words: list[bytes], start: StreamStart, tokens: list[int]) -> tuple[str, int, str | None]:
    """A slow reference: decode all tokens at once, search every position, and cut the text."""
    params = start.text
    texts = [""]
    for count in range(1, len(tokens) + 1):
        data = b"".join(words[t] for t in tokens[:count])
        texts.append(codecs.getincrementaldecoder("utf-8")("replace").decode(data))
    for count, (before, after) in enumerate(pairwise(texts), 1):
        ends = [
            (i + len(stop), -len(stop), stop)
            for stop in params.stop
            for i in range(len(after))
            if after.startswith(stop, i) and i + len(stop) > len(before)
        ]
        if ends and count >= params.min_tokens:
            end, minus_length, stop = min(ends)
            return after[: end if params.include_stop else end + minus_length], count, stop
    return b"".join(words[t] for t in tokens).decode("utf-8", "replace"), len(tokens), None


@st.composite
def splits(draw: st.DrawFn, tokens: list[int]) -> list[list[int]]:
    cuts = sorted(draw(st.sets(st.integers(0, len(tokens)), max_size=6)))
    return [tokens[i:j] for i, j in pairwise([0, *cuts, len(tokens)])]


@st.composite
def word_runs(draw: st.DrawFn) -> tuple[StreamStart, list[int], list[list[int]]]:
    tokens = draw(st.lists(st.integers(0, len(WORDS) - 1), max_size=25))
    text = b"".join(WORDS[t] for t in tokens).decode("utf-8", "replace")
    inside = st.integers(0, max(len(text) - 1, 0)).flatmap(lambda i: st.integers(1, 6).map(lambda n: text[i : i + n]))
    near = st.text("ab\n\ufffd日本★é", min_size=1, max_size=5)
    stops = draw(st.lists(st.one_of(inside.filter(bool), near) if text else near, max_size=4))
    params = TextParams(
        stop=tuple(stops),
        include_stop=draw(st.booleans()),
        skip_special_tokens=False,
        min_tokens=draw(st.sampled_from([0, 0, 1, 3, 9])),
    )
    return StreamStart(params, [], 0), tokens, draw(splits(tokens))


Run = tuple[StreamStart, list[int], list[list[int]]]


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(word_runs())
def test_released_text_is_that_of_decoding_all_and_cutting(run_of: Run) -> None:
    check_text(run_of)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(word_runs())
def test_the_fewest_tokens_that_contain_the_shown_text_are_counted(run_of: Run) -> None:
    check_num_shown(run_of)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None)
@given(word_runs())
def test_text_and_number_of_shown_tokens_at_length(run_of: Run) -> None:
    check_text(run_of)
    check_num_shown(run_of)


def check_text(run_of: Run) -> None:
    start, tokens, items = run_of
    texts, count, stop = run(TextStream(WORD_PIECES, start), items)
    assert ("".join(texts), count, stop) == reference(WORDS, start, tokens)


def check_num_shown(run_of: Run) -> None:
    start, tokens, items = run_of
    stream = TextStream(WORD_PIECES, start)
    shown, num_shown = "", None
    for item in items:
        released = stream.push(item)
        shown += released.text
        if released.stop is not None:
            num_shown = released.num_shown
            break
    assert (num_shown is None) == (released.stop is None if items else True)
    if num_shown is not None:
        whole = TextStream(WORD_PIECES, StreamStart(TextParams(skip_special_tokens=False), [], 0))
        sizes = list(accumulate((len(whole.push([token]).text) for token in tokens), initial=0))
        assert num_shown == next(count for count, size in enumerate(sizes) if size >= len(shown))


@pytest.mark.parametrize(
    ("words", "stop", "num_shown"),
    [
        ([b"ab", b"a", b"\n\n"], "\n\n", 2),
        ([b"ab", b"abc", b"b"], "cb", 2),
        ([b"\n\n"], "\n\n", 0),
        ([b"a", b"<s>", b"b", b"a"], "ba", 1),
    ],
)
def test_the_tokens_of_a_stop_string_are_not_among_those_shown(words: list[bytes], stop: str, num_shown: int) -> None:
    released = TextStream(WORD_PIECES, start(stop=(stop,))).push([WORDS.index(word) for word in words])
    assert (released.stop, released.num_shown) == (stop, num_shown)
    released = TextStream(WORD_PIECES, start(stop=(stop,), include_stop=True)).push([WORDS.index(w) for w in words])
    assert released.num_shown == len(words)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=40).flatmap(lambda data: st.tuples(st.just(data), splits(list(data)))))
@example((b"\xf0\x9f\x98", [[0xF0], [0x9F], [0x98]]))
@example((b"\xed\xa0\x80\xe0\x80", [[0xED], [0xA0], [0x80], [0xE0, 0x80]]))
def test_any_bytes_in_any_split_decode_as_the_codec_does(case: tuple[bytes, list[list[int]]]) -> None:
    data, items = case
    assert "".join(run(stream(), items)[0]) == data.decode("utf-8", "replace")


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.text(max_size=20))
@example(HAND)
def test_an_incomplete_character_is_never_shown(text: str) -> None:
    texts, _, _ = run(stream(), one_by_one(text.encode()))
    assert "".join(texts) == text
    assert all(len(part) <= 1 for part in texts)


@settings(max_examples=500, deadline=None)
@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3))
def test_nothing_of_a_stop_string_is_shown_before_it_is_complete(text: str, stops: list[str]) -> None:
    shown = ""
    decoder = stream(stop=tuple(stops))
    for index, byte in enumerate(text.encode()):
        released = decoder.push([byte])
        shown += released.text
        if released.stop is not None:
            assert shown == text[: index + 1].removesuffix(released.stop)
            return
        held = text[: index + 1].removeprefix(shown)
        longest = max(k for stop in stops for k in range(len(stop)) if text[: index + 1].endswith(stop[:k]))
        assert len(held) == longest  # holds back no more than necessary
    assert shown + decoder.flush() == text


def test_a_stop_string_over_several_tokens_leaves_nothing_behind() -> None:
    texts, count, stop = run(stream(stop=("DEFGHIJ",)), one_by_one(b"ABCDEFGHIJKLM"))
    assert ("".join(texts), count, stop) == ("ABC", 10, "DEFGHIJ")


def test_text_that_almost_matches_a_stop_string_is_released() -> None:
    assert run(stream(stop=("DEFX",)), one_by_one(b"ABCDEFG"))[0] == ["A", "B", "C", "", "", "", "DEFG", ""]


def test_the_stop_that_ends_first_wins_and_the_longer_of_two() -> None:
    assert run(stream(stop=("abcd", "bc")), [list(b"xabcde")]) == (["xa"], 4, "bc")
    assert run(stream(stop=("c", "bc")), [list(b"xabcde")]) == (["xa"], 4, "bc")


def test_text_after_the_stop_in_the_same_item_is_not_output() -> None:
    released = stream(stop=("b",)).push(list(b"abcd"))
    assert (released.text, released.num_tokens, released.stop) == ("a", 2, "b")


def test_the_stop_text_is_kept_on_demand() -> None:
    assert run(stream(stop=("lo",), include_stop=True), one_by_one(b"hello!")) == (
        ["h", "e", "", "l", "lo"],
        5,
        "lo",
    )


def test_a_stop_before_min_tokens_does_not_count() -> None:
    assert run(stream(stop=("b",), min_tokens=3), one_by_one(b"abab")) == (["a", "b", "a", ""], 4, "b")
    assert run(stream(stop=("bab",), min_tokens=4), one_by_one(b"abab"))[2] == "bab"


def test_a_stop_that_begins_inside_a_multi_byte_token_is_found() -> None:
    texts, count, stop = run(stream(stop=("本語",)), one_by_one("日本語です".encode()))
    assert ("".join(texts), count, stop) == ("日", 9, "本語")


def test_flush_releases_a_held_prefix_and_one_replacement_for_an_incomplete_character() -> None:
    decoder = stream(stop=("xyz",))
    assert decoder.push(list(b"wxy\xf0\x9f\x98")).text == "w"
    assert decoder.flush() == "xy\ufffd"
    assert decoder.flush() == ""


def test_a_character_split_between_prompt_and_answer_comes_out_whole() -> None:
    smile = "😀".encode()
    assert "".join(run(stream(prompt=b"hi " + smile[:2]), one_by_one(smile[2:] + b"!"))[0]) == "😀!"


def test_an_incomplete_character_of_the_prompt_alone_is_never_shown() -> None:
    assert "".join(run(stream(prompt=b"hi \xf0\x9f"), one_by_one(b"ok"))[0]) == "ok"
    assert run(stream(prompt=b"hi \xf0\x9f"), [])[0] == [""]


def test_special_tokens_are_skipped_or_shown() -> None:
    items = [[65], [SIM_EOS], [66]]
    assert "".join(run(stream(), items)[0]) == "AB"
    assert "".join(run(stream(skip_special_tokens=False), items)[0]) == "A<|end|>B"


@pytest.mark.parametrize(("tail", "text"), [([], "Hi there"), ([1], " Hi there")])
def test_the_first_space_is_stripped_only_at_the_start_of_a_text(tail: list[int], text: str) -> None:
    vocabulary = Vocabulary(pieces=[b"<s>", b" Hi", b" there"], special_ids=[0], eos_ids=[0], strips_first_space=True)
    assert TextStream(Pieces(vocabulary), StreamStart(TextParams(), tail, 0)).push([0, 1, 2]).text == text


def test_empty_stop_strings_are_ignored() -> None:
    assert run(stream(stop=("",)), one_by_one(b"ab"))[0] == ["a", "b", ""]


def test_lone_continuation_bytes_do_not_accumulate() -> None:
    decoder = stream(stop=("never",))
    assert all(decoder.push([0x80]).text == "\ufffd" for _ in range(4000))


@pytest.mark.parametrize("stop", [(), ("never",)])
def test_a_control_token_that_a_parser_looks_for_is_shown_and_no_other(stop: tuple[str, ...]) -> None:
    pieces = Pieces(Vocabulary(pieces=[b"a", b"<call>", b"<pad>"], special_ids=[1, 2], eos_ids=[2]))
    tokens = [0, 1, 2, 0]
    shown = TextStream(pieces, StreamStart(TextParams(stop=stop, shown_ids=(1,)), [], 0))
    assert "".join(run(shown, [tokens])[0]) == "a<call>a"
    hidden = TextStream(pieces, StreamStart(TextParams(stop=stop), [], 0))
    assert "".join(run(hidden, [tokens])[0]) == "aa"
