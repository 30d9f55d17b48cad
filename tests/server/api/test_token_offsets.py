from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.server.api.token_offsets import TokenOffsets


def places(data: bytes, start: int = 0) -> list[int]:
    counter = TokenOffsets(start)
    return [counter.next(bytes([value])) for value in data]


@pytest.mark.slow
@given(text=st.text(max_size=20), start=st.integers(0, 5))
def test_each_byte_has_the_place_of_its_character(text: str, start: int) -> None:
    assert places(text.encode(), start) == [start + at for at, character in enumerate(text) for _ in character.encode()]


@given(
    parts=st.lists(st.one_of(st.sampled_from([b"\xf0\x9f", b"\x80", b"\xff"]), st.text().map(str.encode)), max_size=8)
)
def test_whole_characters_are_found_behind_broken_bytes(parts: list[bytes]) -> None:
    counter = TokenOffsets()
    text = b"".join(parts).decode("utf-8", "replace")
    for part in parts:
        place = counter.next(part)
        if part and part.decode("utf-8", "replace").encode() == part:
            assert text[place:].startswith(part.decode())


def test_a_token_without_bytes_has_the_offset_of_the_next_one() -> None:
    counter = TokenOffsets()
    assert [counter.next(raw) for raw in (b"a", b"", b"b", b"")] == [0, 1, 1, 2]
