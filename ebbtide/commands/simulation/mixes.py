"""Named synthetic loads. The same seed gives the same requests; the caller sets the arrival rate."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from ...step_cost import StepCost
from .trace import TraceRequest

BURST = 48  # number of requests that arrive at the same time in the mix "bursty"

# Quantiles of the lengths of GPT-4 conversations in BurstGPT (Wang et al., arXiv:2401.17644), as Sun et al. report them
# ("Llumnix", OSDI 2024, table 1). The shortest and the longest lengths are assumptions.
BURSTGPT_PROMPTS = ((0.0, 20), (0.5, 582), (0.8, 1427), (0.95, 2345), (0.99, 3549), (1.0, 6000))
BURSTGPT_OUTPUTS = ((0.0, 10), (0.5, 243), (0.8, 434), (0.95, 669), (0.99, 964), (1.0, 2000))


@dataclass(frozen=True, slots=True)
class Mix:
    """A synthetic load.

    Attributes:
        make: returns the request with a given index, without its arrival time.
        burst: number of requests that arrive at the same time.
        variation: coefficient of variation of the time between two arrivals; 1 for a Poisson process.
    """

    make: Callable[[random.Random, int], TraceRequest]
    burst: int = 1
    variation: float = 1.0


def build(mix: Mix, count: int, seed: int, rate: float) -> list[TraceRequest]:
    """Return ``count`` requests with a mean of ``rate`` arrivals per second, in groups of ``mix.burst``.

    The time between two groups has a Gamma distribution; with ``variation`` 1 it is exponential.
    """
    rng = random.Random(seed)
    shape = mix.variation**-2
    requests = []
    now = 0.0
    for index in range(count):
        if index % mix.burst == 0:
            mean_s = mix.burst / rate
            now += rng.expovariate(1 / mean_s) if shape == 1.0 else rng.gammavariate(shape, mean_s / shape)
        requests.append(replace(mix.make(rng, index), arrival_s=now))
    return requests


def rate_for(mix: Mix, load: float, cost: StepCost, num_rows: int) -> float:
    """Return the arrival rate that keeps a machine with an ample pool busy for a fraction ``load`` of the time.

    The cost of a request is its prefill without the shared prefix, plus its share of decode steps with all rows in use.
    It is estimated from a fixed sample of requests, so that the rate does not depend on the seed of the load.
    """
    rng = random.Random(0)
    sample = [mix.make(rng, index) for index in range(1000)]
    context = sum((request.prompt_len + request.num_outputs / 2) * request.num_outputs for request in sample)
    outputs = sum(request.num_outputs for request in sample)
    decode = cost.seconds(num_rows, 0, num_rows * context / outputs) / num_rows
    prefill = sum(request.prompt_len - request.prefix_len for request in sample) * cost.prefill_token_s
    return load * len(sample) / (outputs * decode + prefill)


def _length(rng: random.Random, median: float, spread: float, low: int, high: int) -> int:
    """Sample a log-normal length between ``low`` and ``high``; 84 % are below median * exp(spread)."""
    return min(max(round(rng.lognormvariate(math.log(median), spread)), low), high)


def _chat(rng: random.Random, index: int) -> TraceRequest:
    prompt_len = 200 + _length(rng, 250, 1.0, 8, 4000)
    limit = rng.choice([None, 1024, 2048])
    return TraceRequest(0.0, prompt_len, _length(rng, 220, 0.8, 4, 2000), "system", 200, limit)


def _long_prompt(rng: random.Random, index: int) -> TraceRequest:
    return TraceRequest(0.0, _length(rng, 4000, 0.6, 500, 16000), _length(rng, 150, 0.7, 8, 800), None, 0, 1024)


def _long_output(rng: random.Random, index: int) -> TraceRequest:
    limit = rng.choice([None, 8192])
    return TraceRequest(0.0, _length(rng, 200, 0.7, 16, 2000), _length(rng, 1500, 0.8, 50, 8000), None, 0, limit)


def _agents(rng: random.Random, index: int) -> TraceRequest:
    """Eight agents, each with its own long instructions, request short answers about text that differs each time."""
    agent = rng.randrange(8)
    prefix_len = 1000 + 400 * agent
    prompt_len = prefix_len + _length(rng, 600, 0.8, 20, 6000)
    return TraceRequest(0.0, prompt_len, _length(rng, 180, 0.9, 8, 1500), agent, prefix_len, rng.choice([None, 2048]))


def _bursty(rng: random.Random, index: int) -> TraceRequest:
    if rng.random() < 0.25:
        return TraceRequest(0.0, _length(rng, 3000, 0.5, 300, 10000), _length(rng, 100, 0.6, 4, 600), None, 0, 512)
    return TraceRequest(0.0, _length(rng, 250, 0.8, 8, 2000), _length(rng, 400, 0.8, 8, 3000), None, 0, None)


def _known_output(rng: random.Random, index: int) -> TraceRequest:
    """The clients know about how long the output will be: max_tokens is at most twice the output length."""
    output_len = _length(rng, 300, 0.8, 8, 3000)
    limit = round(output_len * rng.uniform(1.0, 2.0))
    return TraceRequest(0.0, _length(rng, 500, 1.0, 16, 6000), output_len, None, 0, limit)


def _quantile(rng: random.Random, points: Sequence[tuple[float, int]]) -> int:
    """Sample a length from its published quantiles, interpolated linearly in the logarithm of the length."""
    share = rng.random()
    for (low, first), (high, second) in pairwise(points):
        if share <= high:
            return round(math.exp(math.log(first) + math.log(second / first) * (share - low) / (high - low)))
    return points[-1][1]


def _azure_conversation(rng: random.Random, index: int) -> TraceRequest:
    limit = rng.choice([None, 1024, 4096])
    return TraceRequest(0.0, _length(rng, 1020, 0.9, 16, 8000), _length(rng, 129, 0.9, 4, 1500), None, 0, limit)


def _azure_code(rng: random.Random, index: int) -> TraceRequest:
    limit = rng.choice([None, 256, 1024])
    return TraceRequest(0.0, _length(rng, 1500, 0.9, 16, 8000), _length(rng, 13, 1.0, 2, 900), None, 0, limit)


def _burstgpt(rng: random.Random, index: int) -> TraceRequest:
    prompt_len, output_len = _quantile(rng, BURSTGPT_PROMPTS), _quantile(rng, BURSTGPT_OUTPUTS)
    return TraceRequest(0.0, prompt_len, output_len, None, 0, rng.choice([None, 1024, 2048]))


def _sessions(rng: random.Random, index: int) -> TraceRequest:
    """Conversations of eight turns, 24 at the same time. The prompt of a turn is the whole conversation so far."""
    group, place = divmod(index, 8 * 24)
    turn, number = divmod(place, 24)
    session = random.Random(group * 24 + number)  # the lengths of one conversation are the same in each of its turns
    turns = [(_length(session, 120, 0.9, 8, 2000), _length(session, 180, 0.8, 4, 1500)) for _ in range(turn + 1)]
    prompt_len = 300 + sum(question for question, _ in turns) + sum(answer for _, answer in turns[:-1])
    return TraceRequest(0.0, prompt_len, turns[-1][1], f"session {group} {number}", prompt_len, 2048)


def _leaving(rng: random.Random, index: int) -> TraceRequest:
    """The mix "chat", in which a fifth of the clients disconnect after at most ten seconds."""
    request = _chat(rng, index)
    return replace(request, leaves_s=rng.uniform(0.2, 10.0)) if rng.random() < 0.2 else request


def _priorities(rng: random.Random, index: int) -> TraceRequest:
    """The mix "chat", in which a fifth of the requests have a higher priority (with --schedule-policy priority)."""
    return replace(_chat(rng, index), priority=5 * (rng.random() < 0.2))


MIXES: dict[str, Mix] = {
    "chat": Mix(_chat),
    "long-prompt": Mix(_long_prompt),
    "long-output": Mix(_long_output),
    "agents": Mix(_agents),
    "bursty": Mix(_bursty, BURST),
    "known-output": Mix(_known_output),
    "azure-conversation": Mix(_azure_conversation),
    "azure-code": Mix(_azure_code),
    "burstgpt": Mix(_burstgpt, variation=3.0),
    "sessions": Mix(_sessions),
    "leaving": Mix(_leaving),
    "priorities": Mix(_priorities),
}
