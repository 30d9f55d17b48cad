"""With SmolLM2 in float32, a session has the tokens of the rendered chat, for every way in which its turns can end."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from ebbtide.tokenization.model_files import smollm2_path
from ebbtide.tokenization.tokenizer import ChatPrompt, FastTokenizer
from ebbtide.tokenization.transformers_tokenizer import parts_of

PAGE = 16
QUESTIONS: list[tuple[str, dict[str, Any], str]] = [  # question, the cause of the answer's end, and the finish reason
    ("Why does the sea have tides?", {"max_tokens": 20}, "length"),
    ("What is the capital of France?", {"stop": "."}, "stop string"),
    ("Say hello.", {"max_tokens": 200}, "end of turn"),
    ("What is the capital of Italy?", {"max_tokens": 7}, "length"),
]


@pytest.mark.skipif(not smollm2_path().is_file(), reason="the packaged model is not pulled")
def test_every_turn_continues_the_conversation_as_the_template_renders_it(start_daemon: Any) -> None:
    flags = ("--dtype", "float32", "--max-total-tokens", "4096", "--memory-check", "strict")
    daemon = start_daemon("--enable-streaming-session", *flags, model="smollm2")
    path = smollm2_path()
    tokenizer = FastTokenizer(parts_of(AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)))
    messages: list[dict[str, str]] = []
    total = 0
    with httpx.Client(base_url=daemon.url, timeout=300) as http:
        assert http.post("/v1/sessions", json={"session_id": "s"}).status_code == 200

        def ask(new: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
            body = {"messages": new, "temperature": 0, "return_token_ids": True, **fields}
            reply = http.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200, reply.text
            answer: dict[str, Any] = reply.json()
            return answer

        for question, limit, end in QUESTIONS:
            new = {"role": "user", "content": question}
            messages.append(new)
            turn, whole = ask([new], session_id="s", **limit), ask(messages, **limit)
            choice, usage = turn["choices"][0], turn["usage"]
            assert exit_description(choice) == end
            assert usage["prompt_tokens"] == len(tokenizer.encode_chat(ChatPrompt(messages)))
            assert usage["prompt_tokens_details"]["cached_tokens"] >= total - PAGE
            assert choice["token_ids"] == whole["choices"][0]["token_ids"]
            assert choice["message"]["content"] == whole["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": choice["message"]["content"]})
            total = http.get("/v1/sessions/s").json()["num_tokens"]
            closed = tokenizer.encode_chat(ChatPrompt(messages, add_generation_prompt=False))
            open_tokens = closed[: len(closed) - 2 + (end == "end of turn")]  # <|im_end|> and a line break close it
            assert total == len(open_tokens)


def exit_description(choice: dict[str, Any]) -> str:
    """The finish reason, with stop strings apart from the model's own end."""
    if choice["finish_reason"] == "stop":
        return "end of turn" if choice["stop_reason"] is None else "stop string"
    reason: str = choice["finish_reason"]
    return reason
