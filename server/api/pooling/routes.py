"""The routes for embeddings and scores, and the models behind them."""

from __future__ import annotations

from ...route import Route
from ...state import AppState
from .embeddings import EmbeddingBody, EmbeddingsRoute
from .pooling_model import ChatModel
from .rerank import RerankBody, RerankRoute
from .score import ScoreBody, ScoreRoute
from .service import PoolingService


def pooling_routes(service: PoolingService, created: int) -> list[Route]:
    """Return the routes. created: Unix time at which the model was loaded."""
    embeddings, rerank, score = EmbeddingsRoute(service), RerankRoute(service), ScoreRoute(service, created)
    return [
        Route("POST", "/v1/embeddings", embeddings.create, EmbeddingBody),
        *(Route("POST", path, rerank.create, RerankBody) for path in ("/v1/rerank", "/rerank", "/v2/rerank")),
        *(Route("POST", path, score.create, ScoreBody) for path in ("/v1/score", "/score")),
    ]


def pooling_service(state: AppState) -> PoolingService:
    """Return what the routes share, for a server with a chat model."""
    return PoolingService(
        config=state.config,
        manager=state.manager,
        metrics=state.metrics,
        liveness=state.liveness,
        access=state.access,
        ignored_fields=state.ignored_fields,
        models=(ChatModel(state.model_name, state.prompts),),
    )
