"""The objects that the routes share. They are set when the application is built."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request

from ebbtide.config import ServerConfig
from ebbtide.errors import Rejected
from ebbtide.messages import RunnerInfo
from ebbtide.tokenizer_mgr.control_client import ControlClient
from ebbtide.tokenizer_mgr.manager import TokenizerManager
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest, Sender
from ebbtide.tokenizer_mgr.prompts import PromptReader
from ebbtide.tokenizer_mgr.response_stream import ResponseStream

from .api.pooling.pooling_model import PoolingModel
from .http.access import Access
from .http.auth import caller_of
from .http.middleware import REQUEST_ID
from .metrics.liveness import Liveness
from .metrics.metrics import FrontMetrics
from .metrics.name_log import NameLog
from .metrics.pressure_log import PressureLog
from .parsers.chat_template_profile import ChatTemplateProfile
from .structured.compiled_elsewhere import CompiledElsewhere, Grammars
from .tracing.scope import trace_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AppState:
    """References to the parts of the front process."""

    config: ServerConfig
    model_name: str
    manager: TokenizerManager
    control: ControlClient
    prompts: PromptReader
    structured: Grammars
    metrics: FrontMetrics
    liveness: Liveness
    created: int  # Unix time in seconds at which the model was loaded
    pressure: PressureLog = field(default_factory=PressureLog)
    ignored_fields: NameLog = field(default_factory=lambda: NameLog("ignoring unsupported request fields"))
    left_out_tools: NameLog = field(
        default_factory=lambda: NameLog("leaving out tools that only their provider can run; types")
    )
    access: Access = field(default_factory=Access)
    profile: ChatTemplateProfile = field(default_factory=ChatTemplateProfile)
    encoder: PoolingModel | None = None  # the embedding model, if there is one
    settings: Mapping[str, Any] = field(default_factory=dict)  # the part of the configuration that clients may see

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names of the chat model that a request may use. ``model_name`` is the first one."""
        return self.config.served_model_name or (self.model_name,)

    @property
    def info(self) -> RunnerInfo:
        """The model and pool sizes that the model runner reported."""
        return self.prompts.info

    @property
    def clamps_all(self) -> bool:
        """True if every route reduces a max_tokens that exceeds the room in the context."""
        return self.config.clamp_max_tokens == "all"

    def for_a_thread(self) -> AppState:
        """Return a copy with which a request can be prepared in a thread. Call this method on the event loop."""
        return replace(self, structured=CompiledElsewhere(self.structured, asyncio.get_running_loop()))

    def sender(self, request: Request, ids: tuple[str, ...], timeout_s: float | None) -> Sender:
        """Return the sender of ``request``. Raises Rejected if the sender's key has too many open requests."""
        caller = caller_of(request)
        self.access.check_concurrency(caller, self.manager.num_open_of(caller.owner))
        limit = self.config.max_client_priority
        return self.access.sender(caller, ids=ids, timeout_s=timeout_s, max_priority=limit)

    def submit(self, prepared: PreparedRequest, sender: Sender, request: Request, received_s: float) -> ResponseStream:
        """Send a request to the engine, as described at ``TokenizerManager.submit``.

        Logs the ids that the engine uses for the request, and adds them to the request's trace.
        """
        stream = self.manager.submit(prepared, sender, received_s=received_s)
        try:
            stream.facts.num_choices = prepared.n
            stream.facts.prompt_tokens = {i * prepared.n: len(ids) for i, ids in enumerate(prepared.prompts)}
            self.metrics.observe_request(prepared.n, [sampling.max_tokens for sampling in prepared.sampling])
            self._log_ids(prepared, stream, request)
            trace = trace_of(request.scope)
            if trace is not None:
                trace.submitted(stream, prepared, self.model_name)
        except BaseException:
            stream.close()
            raise
        return stream

    def _log_ids(self, prepared: PreparedRequest, stream: ResponseStream, request: Request) -> None:
        if log.isEnabledFor(logging.DEBUG):
            num_tokens = sum(map(len, prepared.prompts))
            text = "request %s has engine ids %s: %d prompts with %d tokens in total, %d choices each"
            ids = ", ".join(stream.rids[:4]) + (" …" if len(stream.rids) > 4 else "")
            request_id = request.scope[REQUEST_ID]
            log.debug(text, request_id, ids, len(prepared.prompts), num_tokens, prepared.n, extra={"rid": request_id})

    def check_model(self, name: str | None) -> None:
        """Raise Rejected unless ``name`` is None or one of ``model_names``."""
        if name is not None and name not in self.model_names:
            raise unknown_model(name, self.model_names)


def unknown_model(name: str, served: Sequence[str]) -> Rejected:
    """Return the error for a request that names a model which is not one of ``served``."""
    return Rejected(
        f"The model {name[:200]!r} does not exist; this server serves {' and '.join(map(repr, served))}.",
        status=404,
        kind="not_found_error",
        code="model_not_found",
        param="model",
    )
