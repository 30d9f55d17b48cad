"""Open requests by the names that their clients know: their own ids, which may repeat, and those of the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .answer import Answer

ANSWER_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")  # in front of a request's id in the bodies of answers


class ClientIds:
    """Which open requests are meant by an id. A request costs nothing here once it is removed."""

    def __init__(self) -> None:
        self._answers: dict[str, list[Answer]] = {}
        self._ids: dict[int, tuple[str, ...]] = {}
        self._owners: Counter[str] = Counter()

    def add(self, answer: Answer, ids: Iterable[str]) -> None:
        """``answer`` is known under all of ``ids`` until it is removed."""
        known = tuple(dict.fromkeys(ids))
        self._ids[id(answer)] = known
        self._owners[answer.owner] += 1
        for name in known:
            self._answers.setdefault(name, []).append(answer)

    def remove(self, answer: Answer) -> None:
        """Forget ``answer``; nothing happens when it is not here."""
        if id(answer) not in self._ids:
            return
        self._owners[answer.owner] -= 1
        if not self._owners[answer.owner]:
            del self._owners[answer.owner]
        for name in self._ids.pop(id(answer)):
            others = [other for other in self._answers[name] if other is not answer]
            if others:
                self._answers[name] = others
            else:
                del self._answers[name]

    def count(self, owner: str) -> int:
        """How many requests of an owner's are open."""
        return self._owners[owner]

    def find(self, name: str) -> list[Answer]:
        """Every open request that is known as ``name``, also with the prefix that an answer puts in front of it."""
        bare = next((name.removeprefix(prefix) for prefix in ANSWER_PREFIXES if name.startswith(prefix)), name)
        found = [*self._answers.get(name, ()), *(self._answers.get(bare, ()) if bare != name else ())]
        return list({id(answer): answer for answer in found}.values())
