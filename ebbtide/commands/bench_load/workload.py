"""The workload: prompts of common words, lengths and arrival times, all derived from one seed.

The module does not use the network.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

WORD_LIST = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work number night point home water room mother area
money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city name team minute idea body back parent face level office
door health person art war history party result change morning reason research girl guy moment air teacher
force order paper space ground form event matter center couple site project base activity star table need
court oil half sea north south light road green white
"""
MAX_LENGTH = 10_000_000  # maximum number of tokens of a prompt or an answer
# Short and common words. In most vocabularies, each of them is one token.
WORDS = tuple(WORD_LIST.split())


@dataclass(frozen=True, slots=True)
class Lengths:
    """An inclusive range of lengths in tokens, which are sampled uniformly."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """Parse a length such as ``"128"`` or a range such as ``"64:256"``. Raises ValueError for any other string."""
        low, colon, high = text.partition(":")
        lengths = cls(int(low), int(high if colon else low))
        if not 1 <= lengths.low <= lengths.high <= MAX_LENGTH:
            raise ValueError(f"lengths must be from 1 to {MAX_LENGTH} and ascending: {text}")
        return lengths

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Estimates the number of prompt tokens on a server: ``overhead + num_words * tokens_per_word``."""

    tokens_per_word: float
    overhead: float

    @classmethod
    def between(cls, few: tuple[int, int], many: tuple[int, int]) -> Calibration:
        """Return the linear estimate through two measured prompts, each given as (number of words, of tokens)."""
        per_word = (many[1] - few[1]) / (many[0] - few[0])
        return cls(per_word, few[1] - few[0] * per_word)

    def num_words(self, num_tokens: int) -> int:
        """Return the number of words (at least one) of a prompt with about ``num_tokens`` tokens."""
        return max(1, round((num_tokens - self.overhead) / self.tokens_per_word))


@dataclass(frozen=True, slots=True)
class Workload:
    """The parameters of a load.

    Attributes:
        shared_prefix: fraction of every prompt that is the same for all prompts.
        request_rate: mean arrivals per second (Poisson); None sends each request when an earlier one has ended.
    """

    num_requests: int
    prompt_len: Lengths
    output_len: Lengths
    shared_prefix: float
    seed: int
    request_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One request to send.

    Attributes:
        at_s: arrival time in seconds after the start; 0 in a closed loop.
    """

    prompt: str
    max_tokens: int
    at_s: float = 0.0


def make_jobs(workload: Workload, calibration: Calibration, *, stream: str = "measured") -> list[Job]:
    """Return all requests of a load. The same seed gives the same requests.

    stream: loads with different values have different prompts, which share only the common prefix.
    """
    draw = random.Random(f"{workload.seed} {stream}")
    arrivals = random.Random(f"{workload.seed} arrivals")
    longest = calibration.num_words(workload.prompt_len.high)
    common = random.Random(f"{workload.seed} prefix").choices(WORDS, k=longest)
    jobs = []
    at_s = 0.0
    for _ in range(workload.num_requests):
        num_words = calibration.num_words(draw.randint(workload.prompt_len.low, workload.prompt_len.high))
        num_shared = round(workload.shared_prefix * num_words)
        words = common[:num_shared] + draw.choices(WORDS, k=num_words - num_shared)
        max_tokens = draw.randint(workload.output_len.low, workload.output_len.high)
        jobs.append(Job(" ".join(words), max_tokens, at_s))
        if workload.request_rate is not None:
            at_s += arrivals.expovariate(workload.request_rate)
    return jobs
