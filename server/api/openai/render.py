"""POST …/render for chat completions, completions and responses: returns the token ids of a request without running it.

Routers in front of several servers use the token ids to find the server that has cached the longest prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec import structs
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide.errors import Rejected
from ebbtide.messages import SamplingParams, TextParams
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest

from ...http.middleware import assign_client_ids
from ...state import AppState
from ..chat.chat_request import ChatBody
from ..generation import RouteSpec, prepare_off_loop, read_body
from .chat import CHAT_COMPLETIONS
from .completions import COMPLETIONS
from .completions_request import CompletionBody
from .responses import RESPONSES
from .responses_request import ResponsesBody

B = TypeVar("B", ChatBody, CompletionBody, ResponsesBody)


@dataclass(frozen=True, slots=True)
class RenderRoutes:
    """The routes and the state that they use."""

    state: AppState

    async def chat(self, request: Request) -> Response:
        """Show the tokens and the sampling parameters of a chat request, without running it."""
        [rendered] = await self._rendered(request, CHAT_COMPLETIONS, "chatcmpl")
        return JSONResponse(rendered)

    async def completions(self, request: Request) -> Response:
        """Show the tokens and the sampling parameters of each prompt of a completion request, without running it."""
        return JSONResponse(await self._rendered(request, COMPLETIONS, "cmpl"))

    async def responses(self, request: Request) -> Response:
        """Show the tokens and the sampling parameters of a request of the responses API, without running it."""
        [rendered] = await self._rendered(request, RESPONSES, "resp")
        return JSONResponse(rendered)

    async def _rendered(self, request: Request, spec: RouteSpec[B], prefix: str) -> list[dict[str, Any]]:
        body = await read_body(request, self.state, spec)
        if not isinstance(body, ResponsesBody) and (body.session_id is not None or body.session_params is not None):
            raise Rejected(
                "A session turn cannot be rendered, because only the scheduler knows its full prompt.",
                param="session_id",
            )
        [request_id, *_] = assign_client_ids(request.scope, body.names)
        shared: dict[str, Any] = {
            "request_id": f"{prefix}-{request_id}",
            "model": self.state.model_name,
            "stream": bool(body.stream),
            "cache_salt": body.cache_salt,
        }
        held = [body]
        del body
        prepared, _ = await prepare_off_loop(spec, self.state, held, request_id, num_bytes=len(await request.body()))
        shared["priority"] = prepared.priority
        pairs = zip(prepared.prompts, prepared.sampling, strict=True)
        return [{**shared, "token_ids": ids, "sampling_params": _shown(prepared, one)} for ids, one in pairs]


def _shown(prepared: PreparedRequest, sampling: SamplingParams) -> dict[str, Any]:
    """Return the sampling parameters with which a prompt would run."""
    text: TextParams = prepared.text
    return {
        **structs.asdict(sampling),
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()},
        "n": prepared.n,
        "stop": list(text.stop),
        "include_stop_str_in_output": text.include_stop,
        "skip_special_tokens": text.skip_special_tokens,
    }
