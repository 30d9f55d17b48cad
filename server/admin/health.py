"""Liveness and readiness. Neither ever generates a token."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide.errors import Rejected

from ..metrics.liveness import Liveness


@dataclass(frozen=True, slots=True)
class HealthRoutes:
    """The two probes."""

    liveness: Liveness

    async def health(self, _: Request) -> Response:
        """GET /health: 200 unless a child is dead or silent beyond the watchdog's patience."""
        ill = self.liveness.unhealthy_reason()
        if ill is not None:
            raise Rejected(ill, status=503, kind="server_error", code="engine_dead")
        return JSONResponse({})

    async def ready(self, _: Request) -> Response:
        """GET /ready, and /health_generate as SGLang calls it: 200 when a new request would be taken.

        Nothing is generated for it: that fails a server that is only busy with long prompts.
        """
        self.liveness.require_ready()
        return JSONResponse({})
