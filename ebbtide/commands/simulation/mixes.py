"""Named synthetic loads. The same seed gives the same requests; the caller sets the arrival rate."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from .cost import CostModel
from .trace import TraceRequest

BURST = 48  # number of requests that arrive at the same time in the mix "bursty"


@dataclass(frozen=True, slots=True)
class Mix:
    """A synthetic load.

    Attributes:
        make: returns the request with a given index, without its arrival time.
        burst: number of requests that arrive at the same time.
    """

    make: Callable[[random.Random, int], TraceRequest]
    burst: int = 1


def build(mix: Mix, count: int, seed: int, rate: float) -> list[TraceRequest]:
    """Return ``count`` requests: groups of ``mix.burst`` arrive as a Poisson process, ``rate`` requests per second."""
    rng = random.Random(seed)
    requests = []
    now = 0.0
    for index in range(count):
        if index % mix.burst == 0:
            now += rng.expovariate(rate / mix.burst)
        requests.append(replace(mix.make(rng, index), arrival_s=now))
    return requests


def rate_for(mix: Mix, load: float, cost: CostModel, num_rows: int) -> float:
    """Return the arrival rate that keeps a machine with an ample pool busy for a fraction ``load`` of the time.

    The cost of a request is its prefill without the shared prefix, plus its share of decode steps with all rows in use.
    It is estimated from a fixed sample of requests, so that the rate does not depend on the seed of the load.
    """
    rng = random.Random(0)
    sample = [mix.make(rng, index) for index in range(1000)]
    context = sum((request.prompt_len + request.num_outputs / 2) * request.num_outputs for request in sample)
    outputs = sum(request.num_outputs for request in sample)
    decode = cost.decode_step_s(num_rows, context / outputs) / num_rows
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


MIXES: dict[str, Mix] = {
    "chat": Mix(_chat),
    "long-prompt": Mix(_long_prompt),
    "long-output": Mix(_long_output),
    "agents": Mix(_agents),
    "bursty": Mix(_bursty, BURST),
    "known-output": Mix(_known_output),
}
