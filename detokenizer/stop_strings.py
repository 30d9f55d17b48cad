"""Finds stop strings in text that arrives in parts. The module works on characters, not on bytes or tokens."""

from __future__ import annotations


class StopMatcher:
    """Searches for one stop string in text that arrives in parts, at constant cost per character (Knuth-Morris-Pratt).

    Attributes:
        stop: the stop string.
        held: length of the text's longest suffix that is a proper prefix of the stop string.
    """

    __slots__ = ("_fallback", "held", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.held = 0
        self._fallback = _borders(stop)

    def find(self, text: str) -> int:
        """Return the index in ``text`` just after the first match, or −1 if there is none.

        The match may have started in earlier text. After a match, the rest of ``text`` is not consumed.
        """
        stop, held = self.stop, self.held
        if not held and stop[0] not in text:
            return -1
        for index, character in enumerate(text):
            while held and stop[held] != character:
                held = self._fallback[held - 1]
            held += stop[held] == character
            if held == len(stop):
                self.held = self._fallback[held - 1]
                return index + 1
        self.held = held
        return -1


def _borders(stop: str) -> list[int]:
    """Compute for every prefix of ``stop`` the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        length += stop[index] == stop[length]
        borders[index] = length
    return borders
