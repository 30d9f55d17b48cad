from hypothesis import given
from hypothesis import strategies as st

from ebbtide.detokenizer.stop_strings import StopMatcher

AB = st.text("ab", min_size=1, max_size=6)


def all_ends(stop: str, text: str) -> list[int]:
    return [i + len(stop) for i in range(len(text)) if text.startswith(stop, i)]


def longest_held(stop: str, text: str) -> int:
    return max(k for k in range(len(stop)) if text.endswith(stop[:k]))


@given(AB, st.lists(st.text("abc", max_size=8), max_size=8))
def test_matches_are_those_of_a_plain_search_wherever_the_text_is_cut(stop: str, parts: list[str]) -> None:
    matcher = StopMatcher(stop)
    seen = ""
    found: list[int] = []
    for part in parts:
        end = matcher.find(part)
        while end >= 0:
            seen, part = seen + part[:end], part[end:]
            found.append(len(seen))
            end = matcher.find(part)
        seen += part
        assert matcher.held == longest_held(stop, seen)
    assert found == all_ends(stop, seen)
