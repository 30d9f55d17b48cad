"""Routes that describe the server: model, version and settings. The responses contain no secrets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide import __version__
from ebbtide.config import ServeConfig

from ..state import AppState
from .load_report import load_of

SHOWN_SECTIONS = (
    "server",
    "limits",
    "scheduler",
    "runner",
    "encoder",
    "watchdog",
    "log",
)  # the section with the API keys is excluded


def public_settings(config: ServeConfig) -> dict[str, Any]:
    """Return the settings that clients may see: the sections in SHOWN_SECTIONS."""
    return {name: asdict(getattr(config, name)) for name in SHOWN_SECTIONS}


@dataclass(frozen=True, slots=True)
class ServerInfoRoutes:
    """The routes and the state they read."""

    state: AppState

    async def server_info(self, _: Request) -> Response:
        """Show the model, memory, settings and current load."""
        info = self.state.info
        load = load_of(self.state)
        return JSONResponse(
            {
                **self._model(),
                "version": __version__,
                "status": "ready" if self.state.liveness.refusal() is None else "not ready",
                "device": info.device,
                "dtype": info.dtype,
                "attention_backend": info.attention,
                "deterministic": info.deterministic,
                "page_size": info.page_size,
                "max_total_num_tokens": info.num_pages * info.page_size,
                "max_running_requests": info.num_rows,
                "settings": self.state.settings,
                "internal_states": [{**load, "last_gen_throughput": load["gen_throughput"]}],
            }
        )

    async def model_info(self, _: Request) -> Response:
        """Show the model's name, context length and vocabulary size."""
        return JSONResponse(self._model())

    async def root(self, _: Request) -> Response:
        """Show the names of the server and its model.

        Clients request this path to check that the server is reachable.
        """
        return JSONResponse({"name": "ebbtide", "version": __version__, "model": self.state.model_name})

    async def version(self, _: Request) -> Response:
        """Show the version of this server."""
        return JSONResponse({"version": __version__})

    def _model(self) -> dict[str, Any]:
        return {
            "model_path": self.state.model_name,
            "served_model_name": self.state.model_name,
            "tokenizer_path": self.state.model_name,
            "is_generation": True,
            "context_length": self.state.info.context_length,
            "vocab_size": self.state.info.vocab_size,
        }
