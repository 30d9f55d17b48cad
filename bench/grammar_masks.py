"""Measures grammars: the time to compile one, and to accept a token and compute the next mask.

    python bench/grammar_masks.py [--model smollm2] [--answers 20] [--tokens 150] [--json]

Milliseconds on the model's own vocabulary, single-threaded. Tokens are drawn at random from those that a mask allows,
which reaches more states of a grammar than a model's output does.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

import numpy as np

from ebbtide.grammar import GrammarMatcher, Guidance, grammar_of
from ebbtide.server.structured.constraints import (
    Constraint,
    choice_constraint,
    regex_constraint,
    schema_constraint,
)
from ebbtide.tokenization.model_files import resolve_model
from ebbtide.tokenization.tokenizer import load_tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "email": {"type": "string", "format": "email"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 5},
    },
    "required": ["name", "email", "age", "tags"],
    "additionalProperties": False,
}
GRAMMARS: dict[str, Callable[[], Constraint]] = {
    "any JSON object": lambda: schema_constraint({"type": "object"}, "schema"),
    "a person (4 properties)": lambda: schema_constraint(PERSON, "schema"),
    "one of 1,000 words": lambda: choice_constraint([f"word{index}" for index in range(1000)], "choice"),
    "regex [A-Z][a-z]+( [a-z]+)*": lambda: regex_constraint("[A-Z][a-z]+( [a-z]+)*\\.", "regex"),
    "200 alternatives of objects": lambda: schema_constraint(
        {"anyOf": [{"type": "object", "properties": {f"k{i}": {}}, "required": [f"k{i}"]} for i in range(200)]}, "s"
    ),
}


def walk(start: GrammarMatcher, rng: random.Random, num_tokens: int) -> list[float]:
    """Seconds per token of one random output."""
    place, times = start.copy(), []
    while not place.complete and len(times) < num_tokens:
        bits = np.unpackbits(np.frombuffer(place.without_end(), dtype=np.uint8), bitorder="little")
        token = int(rng.choice(np.flatnonzero(bits)))
        started = time.perf_counter()
        place.advance(token)
        times.append(time.perf_counter() - started)
    return times


def measure(guidance: Guidance, constraint: Constraint, answers: int, num_tokens: int) -> dict[str, float]:
    """Milliseconds to compile, and per token: mean, median, 99th percentile and maximum."""
    started = time.perf_counter()
    start = guidance.compile(grammar_of(constraint.lark, special_ids={}))
    compiled = time.perf_counter() - started
    times = sorted(seconds for seed in range(answers) for seconds in walk(start, random.Random(seed), num_tokens))
    token = [sum(times) / len(times), times[len(times) // 2], times[int(len(times) * 0.99)], times[-1]]
    names = ("mean", "p50", "p99", "max")
    return {"compile": 1e3 * compiled} | {name: 1e3 * value for name, value in zip(names, token, strict=True)}


def main() -> None:
    """Measure every grammar and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--answers", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    vocabulary = load_tokenizer(resolve_model(options.model)).vocabulary
    started = time.perf_counter()
    guidance = Guidance(vocabulary, len(vocabulary.pieces), ())
    results = {"the vocabulary": {"compile": 1e3 * (time.perf_counter() - started)}}
    for name, make in GRAMMARS.items():
        results[name] = measure(guidance, make(), options.answers, options.tokens)
    if options.json:
        print(json.dumps(results))
        return
    for name, result in results.items():
        print(f"{name:30}", "  ".join(f"{key} {value:8.3f}" for key, value in result.items()))


if __name__ == "__main__":
    main()
