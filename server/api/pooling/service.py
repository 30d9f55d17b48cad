"""The steps of every route that computes vectors or scores: read, validate, prepare, submit, respond."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ebbtide.config import ServerConfig
from ebbtide.errors import Rejected
from ebbtide.tokenizer_mgr.manager import TokenizerManager
from ebbtide.tokenizer_mgr.prepared_request import Prepared, Sender
from ebbtide.tokenizer_mgr.response_stream import Delta, ResponseStream

from ...http.access import Access
from ...http.auth import caller_of
from ...http.middleware import assign_client_ids
from ...http.off_loop import LARGE_BYTES, coroutine_in_thread
from ...http.streaming import cancel_on_disconnect
from ...http.strict_json import read_json
from ...metrics.liveness import Liveness
from ...metrics.metrics import FrontMetrics
from ...metrics.name_log import NameLog
from ...state import unknown_model
from ...tracing.scope import trace_of
from ..generation_request import CacheSalt, Priority, Timeout
from ..neutral import body_of
from ..unsupported import refuse_unsupported
from .pooling_model import InputOptions, PoolingModel

UNSUPPORTED = ("truncate_prompt_tokens", "messages")
LARGE_REPLY_BYTES = 256 * 1024  # total size of the vectors above which the reply is encoded in a thread


class PoolingBody(msgspec.Struct, kw_only=True):
    """The request fields of all routes for vectors and scores.

    Attributes:
        user: ignored, as in other servers.
        add_special_tokens: False if the tokenizer must not add its special tokens to a string.
    """

    model: str | None = None
    user: str | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    add_special_tokens: bool | None = None
    rid: str | None = None
    request_id: str | None = None
    timeout: Timeout | None = None

    def options(self, param: str) -> InputOptions:
        """Return the options for the inputs, which are in the field ``param``."""
        return InputOptions(
            param=param,
            priority=self.priority or 0,
            namespace=f"salt:{self.cache_salt}" if self.cache_salt else "",
            marks=self.add_special_tokens is not False,
        )


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a request.

    Attributes:
        request_id: the id of the response, without its prefix.
        deltas: one result per input, in the order of the inputs.
    """

    request_id: str
    deltas: list[Delta]

    @property
    def vectors(self) -> list[bytes]:
        """The vector of each input, or the score of each pair, as little-endian float32."""
        return [delta.embedding for delta in self.deltas]

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all inputs."""
        return sum(delta.prompt_tokens or 0 for delta in self.deltas)

    @property
    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object. It has the field ``ebbtide`` if an input was retracted."""
        usage: dict[str, Any] = {"prompt_tokens": self.num_tokens, "total_tokens": self.num_tokens}
        costs = [delta.pressure for delta in self.deltas if delta.pressure is not None]
        if costs:
            usage["ebbtide"] = {
                "num_retractions": sum(cost.num_retractions for cost in costs),
                "recomputed_tokens": sum(cost.recomputed_tokens for cost in costs),
                "queue_ms": max(cost.queue_ms for cost in costs),
            }
        return usage


class Work(Protocol):
    """One validated request."""

    @property
    def param(self) -> str:
        """The name of the field that contains the inputs, for errors."""

    async def prepare(self) -> Prepared:
        """Return the request to the engine. Raises Rejected if an input is invalid or too long."""

    def reply(self, results: Results) -> bytes:
        """Return the response as JSON. May run in a thread."""


B = TypeVar("B", bound=PoolingBody)


@dataclass(frozen=True, slots=True)
class PoolingService:
    """The objects that the routes for vectors and scores share.

    Attributes:
        models: the models that compute vectors or scores. A request that names no model is answered by the first
            suitable one.
    """

    config: ServerConfig
    manager: TokenizerManager
    metrics: FrontMetrics
    liveness: Liveness
    access: Access
    models: tuple[PoolingModel, ...]
    ignored_fields: NameLog = field(default_factory=lambda: NameLog("ignoring unsupported request fields"))

    def model(self, name: str | None, *, vectors: bool) -> PoolingModel:
        """Return the model named ``name``, or the default model if ``name`` is None.

        Raises Rejected if there is no such model, or if it cannot compute vectors although they are wanted.

        vectors: True if the model must compute vectors; False to prefer a model that scores pairs.
        """
        if name is not None:
            found = next((model for model in self.models if model.name == name), None)
            if found is None:
                raise unknown_model(name, [model.name for model in self.models])
        else:
            found = next((model for model in self.models if model.scores_pairs is not vectors), self.models[0])
        if vectors and found.scores_pairs:
            raise Rejected(
                f"{found.name!r} is a cross-encoder: it scores pairs of texts (/v1/rerank, /v1/score) and has no"
                " embeddings.",
                code="not_supported",
                param="model",
            )
        return found

    async def answer(
        self,
        request: Request,
        kind: type[B],
        unsupported: tuple[str, ...],
        work_of: Callable[[B], Work],
    ) -> Response:
        """Answer one request. The whole request is validated before any part is sent to the engine."""
        received_s = self.manager.clock()
        self.liveness.require_ready()
        body = await read_json(request, lambda raw: self._checked(raw, kind, (*UNSUPPORTED, *unsupported)))
        work = work_of(body)
        sender = self._sender(request, body)
        with self.manager.register(sender), self.metrics.count_refusals():
            prepared = await _prepared(work, num_bytes=len(await request.body()))
        stream = self.manager.submit(prepared, sender, received_s=received_s)
        trace = trace_of(request.scope)
        if trace is not None:
            trace.requested_model = body.model
            trace.submitted(stream, prepared, body.model or self.models[0].name)
        return PooledReply(stream, self.metrics, sender.ids[0], work)

    def _checked(self, raw: dict[str, Any], kind: type[B], unsupported: tuple[str, ...]) -> B:
        refuse_unsupported(raw, unsupported)
        body = body_of(raw, kind)
        known = {*kind.__struct_fields__, *unsupported}
        self.ignored_fields.report(name for name in raw if name not in known)
        return body

    def _sender(self, request: Request, body: PoolingBody) -> Sender:
        ids = assign_client_ids(request.scope, (body.rid, body.request_id))
        caller = caller_of(request)
        self.access.check_concurrency(caller, self.manager.num_open_of(caller.owner))
        limit = self.config.max_client_priority
        return self.access.sender(caller, ids=ids, timeout_s=body.timeout, max_priority=limit)


async def _prepared(work: Work, *, num_bytes: int) -> Prepared:
    """Prepare a request whose body has ``num_bytes`` bytes. If the body is large, this runs in a thread."""
    preparing: Callable[[], Coroutine[Any, Any, Prepared]] = work.prepare
    return await (preparing() if num_bytes <= LARGE_BYTES else coroutine_in_thread(preparing))


class PooledReply(Response):
    """The response with all vectors or scores. If the client disconnects, the request is aborted."""

    def __init__(self, stream: ResponseStream, metrics: FrontMetrics, request_id: str, work: Work) -> None:
        super().__init__()
        self._stream = stream
        self._metrics = metrics
        self._request_id = request_id
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._stream:
            try:
                deltas = await cancel_on_disconnect(self._stream.all_deltas(), receive)
            except Rejected as error:
                if error.status == HTTPStatus.BAD_REQUEST:  # the engine does not know the field names of the API
                    error.param = error.param or self._work.param
                raise
        if deltas is None:
            return
        results = Results(self._request_id, deltas)
        self._metrics.count_embeddings(len(deltas), results.num_tokens)
        if sum(map(len, results.vectors)) > LARGE_REPLY_BYTES:
            body = await asyncio.to_thread(self._work.reply, results)
        else:
            body = self._work.reply(results)
        await Response(body, media_type="application/json")(scope, receive, send)
