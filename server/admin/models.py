"""The list of models: the chat model and the embedding model, in the format of OpenAI's or Anthropic's API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..state import AppState, unknown_model

PAGING = frozenset(
    {"after_id", "before_id"}
)  # parameters that request another page, which is empty, because the first page has all models


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One served model.

    Attributes:
        context_length: in tokens.
    """

    name: str
    context_length: int


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    """GET /v1/models and /v1/models/{id}. A request with the header ``anthropic-version`` gets Anthropic's format.

    Attributes:
        served: returns the served models. Called for each request, because a restart of the engine may change the
            context length.
        created: Unix time in seconds at which the models were loaded.
    """

    served: Callable[[], list[ServedModel]]
    created: int

    async def list_models(self, request: Request) -> Response:
        """List the served models."""
        models = self.served()
        if _is_anthropic(request):
            data = [] if request.query_params.keys() & PAGING else [self._anthropic_card(one) for one in models]
            first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
            return JSONResponse({"data": data, "has_more": False, "first_id": first, "last_id": last})
        return JSONResponse({"object": "list", "data": [self._card(one) for one in models]})

    async def one(self, request: Request) -> Response:
        """Describe the model with this id, which may contain slashes; 404 for any other id."""
        name, models = request.path_params["model_id"], self.served()
        found = next((one for one in models if one.name == name), None)
        if found is None:
            raise unknown_model(name, [one.name for one in models])
        return JSONResponse(self._anthropic_card(found) if _is_anthropic(request) else self._card(found))

    def _anthropic_card(self, model: ServedModel) -> dict[str, Any]:
        created = datetime.fromtimestamp(self.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"type": "model", "id": model.name, "display_name": model.name, "created_at": created}

    def _card(self, model: ServedModel) -> dict[str, Any]:
        return {
            "id": model.name,
            "object": "model",
            "created": self.created,
            "owned_by": "ebbtide",
            "root": model.name,
            "parent": None,
            "max_model_len": model.context_length,
        }


def served_models(state: AppState) -> list[ServedModel]:
    """Return the models of a server with a chat model."""
    models = [ServedModel(name, state.info.context_length) for name in state.model_names]
    if state.encoder is not None:
        models.append(ServedModel(state.encoder.name, state.encoder.context_length))
    return models


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers
