"""The routes for embeddings and scores, and the models that they use."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide import __version__
from ebbtide.errors import Rejected

from ...route import Route
from ...state import AppState
from .embeddings import EmbeddingBody, EmbeddingsRoute
from .pooling_model import ChatModel
from .rerank import RerankBody, RerankRoute
from .score import ScoreBody, ScoreRoute
from .service import PoolingService

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate")


def pooling_routes(service: PoolingService, created: int) -> list[Route]:
    """Return the routes.

    created: Unix time in seconds at which the model was loaded.
    """
    embeddings, rerank, score = EmbeddingsRoute(service), RerankRoute(service), ScoreRoute(service, created)
    return [
        Route("POST", "/v1/embeddings", embeddings.create, EmbeddingBody),
        *(Route("POST", path, rerank.create, RerankBody) for path in ("/v1/rerank", "/rerank", "/v2/rerank")),
        *(Route("POST", path, score.create, ScoreBody) for path in ("/v1/score", "/score")),
    ]


def pooling_service(state: AppState) -> PoolingService:
    """Return the service that the routes of a server with a chat model share."""
    return PoolingService(
        config=state.config,
        manager=state.manager,
        metrics=state.metrics,
        liveness=state.liveness,
        access=state.access,
        ignored_fields=state.ignored_fields,
        models=(
            *((state.encoder,) if state.encoder is not None else ()),
            *(ChatModel(name, state.prompts) for name in state.model_names),
        ),
    )


@dataclass(frozen=True, slots=True)
class EncoderOnlyRoutes:
    """Routes of a server without a chat model.

    Attributes:
        name: the name of the embedding model.
    """

    name: str

    def routes(self) -> list[Route]:
        """Return the route table."""
        return [
            Route("GET", "/", self.root),
            Route("GET", "/version", self.version),
            *(Route("POST", path, self.no_chat_model) for path in GENERATING),
        ]

    async def root(self, _: Request) -> Response:
        """Show the names of the server and its model."""
        return JSONResponse({"name": "ebbtide", "version": __version__, "model": self.name})

    async def version(self, _: Request) -> Response:
        """Show the version of this server."""
        return JSONResponse({"version": __version__})

    async def no_chat_model(self, _: Request) -> Response:
        """Refuse the request: there is no model that generates text."""
        raise Rejected(
            f"This server has only the embedding model {self.name!r}, which generates no text.",
            status=404,
            kind="not_found_error",
            code="model_not_found",
            param="model",
        )
