"""A chat of 20 turns on SmolLM2, with a session and without any reuse, turn by turn in one run.

    python bench/session_turns.py [--turns 20] [--rounds 3] [--dtype bfloat16] [--json FILE]

Two daemons: one keeps the chat in a session and gets only the new messages; the other has no prefix cache and gets the
whole conversation. Each turn goes to both, one after the other, so that other load on the machine affects both. Fails
if a turn with a session computes more than its new tokens and one page.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from daemon import Daemon

PAGE = 16
OUTPUT_LEN = 32
WORDS = "the tide comes in and goes out twice a day because the moon pulls the sea and the earth turns under it"


@dataclass
class Turn:
    """One turn of one round. Times are to the first token, in seconds."""

    number: int
    prompt_tokens: int
    earlier_tokens: int
    cached_tokens: int
    session_s: float
    whole_s: float


@dataclass
class Reply:
    """The parts of a streamed response."""

    text: str
    first_token_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int


def question(number: int) -> dict[str, str]:
    """About a hundred tokens, different each turn."""
    known = WORDS.split()
    words = [known[(number * 7 + index * (number + 2)) % len(known)] for index in range(90)]
    return {"role": "user", "content": f"Question {number}: " + " ".join(words)}


def ask(http: httpx.Client, messages: list[dict[str, str]], **fields: object) -> Reply:
    """Stream one response."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    body = {"messages": messages, "max_tokens": OUTPUT_LEN, "temperature": 0, **options, **fields}
    text, first_s, usage = "", 0.0, {}
    started = time.perf_counter()
    with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            chunk = json.loads(line[6:]) if line.startswith("data: {") else {"choices": []}
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                first_s = first_s or (time.perf_counter() - started if text or choice["finish_reason"] else 0.0)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Reply(text, first_s, usage["prompt_tokens"], usage["completion_tokens"], cached)


def chat(session: httpx.Client, whole: httpx.Client, name: str, num_turns: int) -> list[Turn]:
    """One conversation with both daemons. Both get the session's responses as history."""
    session.post("/v1/sessions", json={"session_id": name}).raise_for_status()
    messages: list[dict[str, str]] = []
    turns: list[Turn] = []
    earlier = 0
    for number in range(1, num_turns + 1):
        messages.append(question(number))
        mine = ask(session, messages[-1:], session_id=name)
        theirs = ask(whole, messages)
        assert mine.cached_tokens >= earlier - PAGE, "the turn computed more than its new tokens"
        assert theirs.cached_tokens == 0
        turn = Turn(number, mine.prompt_tokens, earlier, mine.cached_tokens, mine.first_token_s, theirs.first_token_s)
        print(name, json.dumps(asdict(turn)), file=sys.stderr, flush=True)
        turns.append(turn)
        earlier = mine.prompt_tokens + mine.output_tokens
        messages.append({"role": "assistant", "content": mine.text})
    session.delete(f"/v1/sessions/{name}").raise_for_status()
    return turns


def main() -> None:
    """Run the rounds and print the medians as a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    common = ("--dtype", args.dtype, "--max-total-tokens", "8192", "--page-size", str(PAGE))
    with (
        closing(Daemon(*common, "--enable-streaming-session")) as one,
        closing(Daemon(*common, "--disable-radix-cache")) as other,
    ):
        clients = [httpx.Client(base_url=daemon.url, timeout=600) for daemon in (one, other)]
        chat(*clients, "warm-up", 2)
        rounds = [chat(*clients, f"round-{index}", args.turns) for index in range(args.rounds)]
        for client in clients:
            client.close()
    print(f"load average {os.getloadavg()[0]:.1f}, {args.rounds} rounds, {args.dtype}")
    print("| turn | prompt tokens | of them cached | first token, session | first token, whole conversation | ratio |")
    print("|---|---|---|---|---|---|")
    for turns in zip(*rounds, strict=True):
        mine, theirs = (
            statistics.median(times) for times in zip(*((t.session_s, t.whole_s) for t in turns), strict=True)
        )
        counts = f"{turns[0].prompt_tokens} | {turns[0].cached_tokens}"
        print(f"| {turns[0].number} | {counts} | {mine:.2f} s | {theirs:.2f} s | {theirs / mine:.1f} |")
    if args.json is not None:
        args.json.write_text(json.dumps([[asdict(turn) for turn in turns] for turns in rounds]))


if __name__ == "__main__":
    main()
