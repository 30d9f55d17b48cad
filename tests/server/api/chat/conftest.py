"""The front with a chat template of a model family, and a model whose output is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
from msgspec import structs

from ebbtide.config import ServerConfig
from ebbtide.detokenizer.pieces import Pieces
from ebbtide.detokenizer.stream import TextStream
from ebbtide.messages import GenerateReq, PoolInfo, StreamStart, TextBatch, TextItem
from ebbtide.server.app import create_app
from ebbtide.server.parsers.chat_template_profile import probe_chat_template
from ebbtide.tokenization.tokenizer import FastTokenizer
from ebbtide.tokenizer_mgr.prompts import PromptReader

from ...chat_templates import HERMES, tokenizer_with
from ...conftest import INFO, ScriptedEngine, World, build_state

PAD, MARK = "<|pad|>", "[TOOL_CALLS]"


class Model:
    """Generates ``text`` for every request, through a real detokenizer, one token at a time."""

    def __init__(self, tokenizer: FastTokenizer, engine: ScriptedEngine) -> None:
        self.text = ""
        self.prompt = ""
        self._tokenizer = tokenizer
        self._engine = engine
        engine.answer = self.answer

    def answer(self, request: GenerateReq) -> None:
        """Return the scripted tokens as text, with the control tokens that the request shows."""
        pieces = Pieces(self._tokenizer.vocabulary)
        self.prompt = pieces.joined(request.prompt, skip_special=False).decode()
        ids = self._tokenizer.encode(self.text, add_special_tokens=False)
        for rid in request.rids:
            stream = TextStream(pieces, StreamStart(request.text, [], 0))
            for number, token in enumerate(ids, 1):
                last = number == len(ids)
                text = stream.push([token]).text + (stream.flush() if last else "")
                item = TextItem(rid, text, [token], number, finish="stop" if last else None)
                assert self._engine.manager is not None
                self._engine.manager.handle(TextBatch([item]))


@pytest.fixture
def template() -> str:
    return HERMES


@pytest.fixture
async def model(template: str, engine: ScriptedEngine, config: ServerConfig) -> AsyncIterator[tuple[World, Model]]:
    tokenizer = tokenizer_with(template, ("<|end|>", PAD, MARK))
    info = structs.replace(INFO, context_length=8192, pools=(PoolInfo(512, 16),), vocab_size=tokenizer.vocab_size)
    state = build_state(engine, config, info, profile=probe_chat_template(tokenizer))
    state.prompts.close()
    state = replace(state, prompts=PromptReader(tokenizer, info))
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield World(engine, state, client), Model(tokenizer, engine)
    state.prompts.close()
