"""The HTTP application: the route table, the middleware, and the OpenAPI schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from fastapi import Depends, FastAPI
from starlette.responses import Response
from starlette.types import ASGIApp

from ebbtide import __version__
from ebbtide.config import ServerConfig

from .admin.abort import AbortBody, AbortRoute
from .admin.control import FLUSH_QUERY, ControlRoutes, PauseBody
from .admin.health import HealthRoutes
from .admin.load_report import LOADS_QUERY, LoadsRoute
from .admin.models import ModelRoutes, ServedModel, served_models
from .admin.pressure import PressureRoute
from .admin.server_info import ServerInfoRoutes
from .admin.sessions import CloseSession, NewSession, OpenSession, SessionRoutes
from .admin.tokenize import DetokenizeBody, TokenizeBody, TokenizeRoutes
from .api.anthropic.messages import MESSAGES, CountTokensRoute
from .api.anthropic.messages_request import CountTokensBody
from .api.chat.chat_request import ChatBody
from .api.error_formats import ERROR_FORMATS
from .api.generation import generation_route
from .api.openai.chat import CHAT_COMPLETIONS
from .api.openai.completions import COMPLETIONS
from .api.openai.completions_request import CompletionBody
from .api.openai.render import RenderRoutes
from .api.openai.responses import RESPONSES, stored
from .api.openai.responses_request import ResponsesBody
from .api.pooling.routes import EncoderOnlyRoutes, pooling_routes, pooling_service
from .api.pooling.service import PoolingService
from .api.sglang.generate import GENERATE
from .console.files import ConsoleAtRoot, add_console_files, console_files
from .console.routes import add_console_routes
from .http.access import Access
from .http.auth import KeyCheck, require_control
from .http.cors import OriginGuard, RootPath, add_cors
from .http.docs_page import add_docs
from .http.error_replies import SetErrorFormats, SuppressLoggedErrors, install_error_replies
from .http.middleware import BodyLimit, RequestIds
from .http.openapi import describe, operation
from .metrics.http_counts import CountRequests
from .metrics.metrics import FrontMetrics
from .route import TEXT, Route
from .state import AppState

Wrapper = Callable[[ASGIApp], ASGIApp]  # returns the application with one more middleware


def routes(state: AppState) -> list[Route]:
    """Return the route table. A new endpoint needs one file and one line in this function."""
    models = ModelRoutes(partial(served_models, state), state.created)
    health, sessions = HealthRoutes(state.liveness), SessionRoutes(state)
    control, tokens = ControlRoutes(state), TokenizeRoutes(state)
    about, loads, rendering = ServerInfoRoutes(state), LoadsRoute(state), RenderRoutes(state)
    return [
        generation_route("/v1/chat/completions", state, CHAT_COMPLETIONS),
        generation_route("/v1/completions", state, COMPLETIONS),
        Route("POST", "/v1/chat/completions/render", rendering.chat, ChatBody),
        Route("POST", "/v1/completions/render", rendering.completions, CompletionBody),
        generation_route("/v1/responses", state, RESPONSES),
        Route("POST", "/v1/responses/render", rendering.responses, ResponsesBody),
        Route("GET", "/v1/responses/{response_id}", stored),
        Route("DELETE", "/v1/responses/{response_id}", stored),
        Route("POST", "/v1/responses/{response_id}/cancel", stored),
        generation_route("/v1/messages", state, MESSAGES),
        Route("POST", "/v1/messages/count_tokens", CountTokensRoute(state).count_tokens, CountTokensBody),
        generation_route("/generate", state, GENERATE),
        Route("GET", "/v1/models", models.list_models),
        Route("GET", "/v1/models/{model_id:path}", models.one),
        Route("GET", "/health", health.health),
        Route("GET", "/ready", health.ready),
        Route("GET", "/health_generate", health.ready),
        Route("GET", "/metrics", state.metrics.route, media=TEXT),
        Route("POST", "/v1/sessions", sessions.create, NewSession),
        Route("GET", "/v1/sessions", sessions.list_sessions),
        Route("GET", "/v1/sessions/{session_id}", sessions.one),
        Route("DELETE", "/v1/sessions/{session_id}", sessions.close),
        Route("POST", "/open_session", sessions.open_as_sglang, OpenSession),
        Route("POST", "/close_session", sessions.close_as_sglang, CloseSession, media=""),
        Route("POST", "/abort_request", AbortRoute(state).abort, AbortBody),
        Route("POST", "/flush_cache", control.flush, is_admin=True, query=FLUSH_QUERY, media=TEXT),
        Route("GET", "/flush_cache", control.flush, is_admin=True, query=FLUSH_QUERY, media=TEXT),
        Route("POST", "/pause_generation", control.pause, PauseBody, is_admin=True, optional=True),
        Route("POST", "/continue_generation", control.resume, is_admin=True),
        Route("POST", "/tokenize", tokens.tokenize, TokenizeBody),
        Route("POST", "/v1/tokenize", tokens.tokenize, TokenizeBody),
        Route("POST", "/detokenize", tokens.detokenize, DetokenizeBody),
        Route("POST", "/v1/detokenize", tokens.detokenize, DetokenizeBody),
        Route("GET", "/tokenizer_info", tokens.info),
        *pooling_routes(pooling_service(state), state.created),
        Route("GET", "/", about.root),
        Route("GET", "/server_info", about.server_info),
        Route("GET", "/get_server_info", about.server_info),
        Route("GET", "/model_info", about.model_info),
        Route("GET", "/get_model_info", about.model_info),
        Route("GET", "/version", about.version),
        Route("GET", "/v1/loads", loads.show, query=LOADS_QUERY),
        Route("GET", "/get_load", loads.brief),
        Route("GET", "/pressure", PressureRoute(state.pressure, state.metrics).show),
    ]


def encoder_routes(service: PoolingService, created: int) -> list[Route]:
    """Return the route table of a server that has only an embedding model.

    created: Unix time in seconds at which the model was loaded.
    """
    [model] = service.models
    models = ModelRoutes(lambda: [ServedModel(model.name, model.context_length)], created)
    health = HealthRoutes(service.liveness)
    return [
        *pooling_routes(service, created),
        *EncoderOnlyRoutes(model.name).routes(),
        Route("GET", "/v1/models", models.list_models),
        Route("GET", "/v1/models/{model_id:path}", models.one),
        Route("GET", "/health", health.health),
        Route("GET", "/ready", health.ready),
        Route("GET", "/metrics", service.metrics.route, media=TEXT),
    ]


class _Basis(Protocol):
    """The objects that every application needs, with or without a chat model."""

    @property
    def config(self) -> ServerConfig: ...

    @property
    def access(self) -> Access: ...

    @property
    def metrics(self) -> FrontMetrics: ...


def create_app(state: AppState, trace: Wrapper | None = None) -> ASGIApp:
    """Build the application of a server with a chat model; see ``_assemble``."""
    return _assemble(state, routes(state), trace, None if state.access.config.disable_console else state)


def create_encoder_app(service: PoolingService, created: int, trace: Wrapper | None = None) -> ASGIApp:
    """Build the application of a server that has only an embedding model; see ``_assemble``."""
    return _assemble(service, encoder_routes(service, created), trace)


def _assemble(
    basis: _Basis, table: list[Route], trace: Wrapper | None = None, console: AppState | None = None
) -> ASGIApp:
    """Build the ASGI application, which serves only HTTP (no lifespan events, no WebSockets). Starts no tasks.

    trace: adds the middleware that traces requests; None for no traces.
    console: the state that the console shows; None for no console.
    """
    access = basis.access.config
    app = FastAPI(
        title="ebbtide",
        version=__version__,
        redirect_slashes=False,
        openapi_url=None if access.disable_docs else "/openapi.json",
        docs_url=None,  # FastAPI's own pages load scripts from another server
        redoc_url=None,
    )
    if not access.disable_docs:
        add_docs(app)
    if console is not None:
        add_console_files(app)
        add_console_routes(app, console)
    for route in table:
        app.add_api_route(
            route.path,
            route.endpoint,
            methods=[route.method],
            response_model=None,
            response_class=Response,
            dependencies=[Depends(require_control)] if route.is_admin else [],
            **operation(route, ERROR_FORMATS),
        )
        if route.method == "GET" and not route.is_admin:
            app.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)
    install_error_replies(app)
    describe(app, table, key_required=basis.access.keys.required)
    admin_get_paths = [route.path for route in table if route.is_admin and route.method == "GET"]
    inner: ASGIApp = BodyLimit(SuppressLoggedErrors(app), basis.config.max_body_bytes)
    if trace is not None:
        inner = trace(inner)
    counted = CountRequests(
        _add_middleware(inner, basis, admin_get_paths, has_console=console is not None), app.routes, basis.metrics.http
    )
    return RequestIds(SetErrorFormats(RootPath(counted, access.root_path), ERROR_FORMATS))


def _add_middleware(app: ASGIApp, basis: _Basis, admin_get_paths: Sequence[str], *, has_console: bool) -> ASGIApp:
    """Wrap ``app`` in the middleware that refuses requests, innermost first.

    FastAPI's ``add_middleware`` is not used, because FastAPI's replies to unhandled exceptions would bypass the
    middleware.
    """
    access = basis.access
    root_path = access.config.root_path
    app = KeyCheck(app, access.keys, root_path, console_files() if has_console else ())
    if has_console:
        app = ConsoleAtRoot(app, root_path)
    app = OriginGuard(app, access.config.allowed_origins, admin_get_paths)
    # CORS wraps the key check, because preflight requests have no key, and because a page must be able to read a 401
    # response.
    return add_cors(app, access.config.allowed_origins)
