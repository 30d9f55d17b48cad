"""Opens the tracing of a front, or its replacement if requests are not traced. The module imports no SDK itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from starlette.types import ASGIApp

from ebbtide.config import TracingConfig
from ebbtide.messages import PhaseChanges, PressureEvent

from ..metrics.metrics import FrontMetrics


class RequestTracing(Protocol):
    """Traces the requests of one application."""

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` with the middleware that traces its requests."""

    def handle(self, message: PhaseChanges | PressureEvent) -> None:
        """Add what the scheduler reports to the traces."""

    def on_scheduler_death(self) -> None:
        """End the traces of all requests at the scheduler."""

    async def stop(self) -> None:
        """Send the remaining spans."""


class NoTracing:
    """Does nothing: requests are not traced."""

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Return ``app``."""
        return app

    def handle(self, message: PhaseChanges | PressureEvent) -> None:
        """Ignore the message."""

    def on_scheduler_death(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""


def open_tracing(config: TracingConfig, page_sizes: Mapping[str, int], metrics: FrontMetrics) -> RequestTracing:
    """Connect to the collector, if the configuration names one. Raises StartupError if a setting is invalid.

    page_sizes: tokens per page of each pool, by its name.
    """
    if config.otlp_endpoint is None:
        return NoTracing()
    from .export import open_export
    from .tracing import Tracing

    tracing = Tracing(open_export(config), page_sizes)
    tracing.register_metrics(metrics)
    return tracing
