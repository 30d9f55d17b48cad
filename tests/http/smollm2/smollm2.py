"""Sixteen varied chats with SmolLM2: their greedy answers in transformers and from a daemon, token by token.

``python -m tests.http.smollm2.smollm2`` records the answers of transformers in answers.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import AutoTokenizer, PreTrainedModel

from ebbtide.tokenization.model_files import smollm2_path
from ebbtide.tokenization.tokenizer import FastTokenizer
from ebbtide.tokenization.transformers_tokenizer import parts_of

from ...model_runner.reference import load_reference

RECORDED = Path(__file__).parent / "answers.json"
NUM_TOKENS = 64
BATCH = 5  # prompts of similar length in one call of generate: five times as fast as one by one
Chat = list[dict[str, str]]

CODE = """def merge(left: list[int], right: list[int]) -> list[int]:
    result = []
    while left and right:
        result.append(left.pop(0) if left[0] <= right[0] else right.pop(0))
    return result
"""
LETTER = "\n".join(
    f"{day}: the tide was {height} metres at {hour} o'clock, the wind came from the {wind}, and {boats} boats went out."
    for day, height, hour, wind, boats in [
        ("Monday", 3.2, 6, "north", 12),
        ("Tuesday", 3.4, 7, "north-west", 9),
        ("Wednesday", 3.9, 8, "west", 0),
        ("Thursday", 4.1, 9, "west", 2),
        ("Friday", 3.7, 10, "south-west", 14),
        ("Saturday", 3.1, 11, "south", 21),
        ("Sunday", 2.8, 12, "east", 3),
    ]
)


def _user(text: str) -> Chat:
    return [{"role": "user", "content": text}]


CHATS: list[Chat] = [
    _user("Hello"),
    _user("Why does the sea have tides?"),
    _user("Write a poem about a harbour at night."),
    _user("What is 17 + 25? Explain step by step."),
    _user("Schreibe einen kurzen Brief an deine Großmutter über den Sommer am Fluss."),
    _user("¿Cuáles son las tres ciudades más grandes de España?"),
    _user("请用中文介绍一下月亮。"),
    _user("🌊🚢🌙?"),
    _user(f"What does this Python function do, and what is wrong with it?\n\n```python\n{CODE}```"),
    _user("Write a SQL query that lists all customers with more than three orders."),
    _user("List ten animals, one per line, numbered."),
    _user('Give me a JSON object with the keys "name", "age" and "city".'),
    _user(f"Here is my diary.\n\n{LETTER}\n\nOn which day did no boat go out, and why? Summarise the week."),
    [
        {"role": "system", "content": "You are a pirate. You answer in one short sentence, and never without 'Arr'."},
        {"role": "user", "content": "How do I cook an egg?"},
    ],
    [
        {"role": "user", "content": "My name is Ada and I live in Lisbon."},
        {"role": "assistant", "content": "Nice to meet you, Ada! Lisbon is a beautiful city."},
        {"role": "user", "content": "What is my name, and where do I live?"},
    ],
    [
        {"role": "system", "content": "Translate what the user says into French."},
        {"role": "user", "content": "Good morning, where is the station?"},
        {"role": "assistant", "content": "Bonjour, où est la gare ?"},
        {"role": "user", "content": "The train is late again. I will take a boat."},
    ],
]


@dataclass(frozen=True)
class Answer:
    """One chat's prompt length and the bytes of each token of its answer; no two tokens of SmolLM2 have the same."""

    prompt_len: int
    tokens: list[bytes]


def shortened(answers: list[Answer], num_tokens: int) -> list[Answer]:
    """Return the first tokens of each answer."""
    return [replace(answer, tokens=answer.tokens[:num_tokens]) for answer in answers]


def recorded_answers() -> list[Answer]:
    """Return the recorded result of ``generated_answers``."""
    lists = json.loads(RECORDED.read_text())
    return [Answer(prompt_len, [token.encode("latin-1") for token in tokens]) for prompt_len, tokens in lists]


def record(answers: list[Answer]) -> None:
    """Write the answers to the file, one a line, each byte as one character."""
    lists = [[answer.prompt_len, [token.decode("latin-1") for token in answer.tokens]] for answer in answers]
    RECORDED.write_text("[\n" + ",\n".join(map(json.dumps, lists)) + "\n]\n")


def generated_answers() -> list[Answer]:
    """Return the answers of transformers' ``generate`` to the chats in float32; takes a minute of CPU time."""
    path = smollm2_path()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    pieces = FastTokenizer(parts_of(tokenizer)).vocabulary.pieces
    assert len(set(pieces)) == len(pieces)
    prompts = [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False) for c in CHATS]
    outputs: dict[int, list[int]] = {}
    model = load_reference(path)
    by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for some in (by_length[first : first + BATCH] for first in range(0, len(prompts), BATCH)):
        outputs |= zip(some, _greedy_together(model, [prompts[index] for index in some]), strict=True)
    return [Answer(len(prompt), [pieces[t] for t in outputs[index]]) for index, prompt in enumerate(prompts)]


def _greedy_together(model: PreTrainedModel, prompts: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=mask, max_new_tokens=NUM_TOKENS, do_sample=False)
    rows: list[list[int]] = out[:, longest:].tolist()
    return rows


class SmolLM2:
    """A daemon that serves SmolLM2, asked for greedy answers."""

    def __init__(self, url: str, num_tokens: int = NUM_TOKENS) -> None:
        self._num_tokens = num_tokens
        self._http = httpx.Client(base_url=url, timeout=300, limits=httpx.Limits(max_connections=64))

    def answer(self, chat: Chat, **fields: Any) -> Answer:
        """Return one answer of ``num_tokens`` tokens, which an end token does not end."""
        body = {
            "messages": chat,
            "temperature": 0,
            "max_tokens": self._num_tokens,
            "ignore_eos": True,
            "logprobs": True,
        }
        reply = self._http.post("/v1/chat/completions", json={**body, **fields})
        assert reply.status_code == 200, reply.text
        [choice], usage = reply.json()["choices"], reply.json()["usage"]
        tokens = [bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]]
        assert (len(tokens), choice["finish_reason"]) == (usage["completion_tokens"], "length")
        return Answer(usage["prompt_tokens"], tokens)

    def one_by_one(self, chats: Sequence[Chat]) -> list[Answer]:
        """The answers to the chats, one chat at a time."""
        return [self.answer(chat) for chat in chats]

    def together(self, chats: Sequence[Chat]) -> list[Answer]:
        """All chats at once."""
        with ThreadPoolExecutor(len(chats)) as pool:
            return list(pool.map(self.answer, chats))

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        lines = self._http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"ebbtide:{name}{{"))

    def close(self) -> None:
        self._http.close()


if __name__ == "__main__":
    record(generated_answers())
