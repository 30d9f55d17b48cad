"""The model list, which has one entry, in the format of OpenAI's or Anthropic's API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..state import AppState

PAGING = frozenset({"after_id", "before_id"})  # a page of the list: there is no entry before or after the only model


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    """GET /v1/models and /v1/models/{id}. A request with the header ``anthropic-version`` gets Anthropic's format."""

    state: AppState

    async def list_models(self, request: Request) -> Response:
        """List the served model."""
        if _is_anthropic(request):
            data = [] if request.query_params.keys() & PAGING else [self._anthropic_card()]
            name = data[0]["id"] if data else None
            return JSONResponse({"data": data, "has_more": False, "first_id": name, "last_id": name})
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def one(self, request: Request) -> Response:
        """Describe the model with this id, which may contain slashes; 404 for any other id."""
        self.state.check_model(request.path_params["model_id"])
        return JSONResponse(self._anthropic_card() if _is_anthropic(request) else self._card())

    def _anthropic_card(self) -> dict[str, Any]:
        created = datetime.fromtimestamp(self.state.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name = self.state.model_name
        return {"type": "model", "id": name, "display_name": name, "created_at": created}

    def _card(self) -> dict[str, Any]:
        return {
            "id": self.state.model_name,
            "object": "model",
            "created": self.state.created,
            "owned_by": "ebbtide",
            "root": self.state.model_name,
            "parent": None,
            "max_model_len": self.state.info.context_length,
        }


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers
