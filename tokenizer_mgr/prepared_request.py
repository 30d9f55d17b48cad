"""One HTTP request with its prompts tokenized and every limit known, ready for the scheduler. Knows no API."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.messages import SamplingParams, SessionTurn, TextParams


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """All generations of one HTTP request: ``n`` choices of each prompt. Prompts and sampling run in parallel.

    ids: under which its client knows it. owner: who may end it by such an id. queue_timeout_s, timeout_s: seconds from
    its arrival until it must have begun to run, and until it must have ended.
    grammar: what each of them must match (``GenerateReq``).
    """

    prompts: list[list[int]]
    sampling: list[SamplingParams]
    text: TextParams
    n: int = 1
    priority: int = 0
    namespace: str = ""
    session: SessionTurn | None = None
    ids: tuple[str, ...] = ()
    owner: str = ""
    grammar: str = ""
    queue_timeout_s: float | None = None
    timeout_s: float | None = None

    @property
    def num_choices(self) -> int:
        """Choice index = prompt index × n + sample."""
        return len(self.prompts) * self.n
