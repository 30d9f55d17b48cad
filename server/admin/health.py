"""Liveness and readiness probes. The probes generate no tokens."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide.errors import Rejected

from ..metrics.liveness import Liveness


@dataclass(frozen=True, slots=True)
class HealthRoutes:
    """The probe routes."""

    liveness: Liveness

    async def health(self, _: Request) -> Response:
        """GET /health: 200 unless a child process has ended or has been silent for longer than the watchdog timeout."""
        reason = self.liveness.unhealthy_reason()
        if reason is not None:
            raise Rejected(reason, status=503, kind="server_error", code="engine_dead")
        return JSONResponse({})

    async def ready(self, _: Request) -> Response:
        """GET /ready, and SGLang's /health_generate: 200 if a new request would be accepted.

        The probe generates no token, because it would otherwise fail while the server is busy with long prompts.
        """
        self.liveness.require_ready()
        return JSONResponse({})
