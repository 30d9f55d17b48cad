"""The model list, which has one entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide.errors import StartupError

from ..state import AppState


def check_model_name(name: str | None) -> None:
    """Raises StartupError for an empty model name. None is valid: the name is then derived from the path."""
    if name is not None and not name.strip():
        raise StartupError("--served-model-name must not be empty.")


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    """GET /v1/models and /v1/models/{id}."""

    state: AppState

    async def every(self, _: Request) -> Response:
        """List the served model."""
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def one(self, request: Request) -> Response:
        """Describe the model with this id, which may contain slashes; 404 for any other id."""
        self.state.check_model(request.path_params["model_id"])
        return JSONResponse(self._card())

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
