"""Creates the tracing of a front process. This module imports the SDK only if requests are traced."""

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
        """Add the scheduler's message to the traces of its requests."""

    def on_scheduler_death(self) -> None:
        """End all choices that the scheduler has not ended."""

    async def stop(self) -> None:
        """Send the remaining spans."""


class NoTracing:
    """The implementation for servers that do not trace requests. It does nothing."""

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
    """Connect to the collector if the configuration names one. Raises StartupError if a setting is invalid.

    page_sizes: tokens per page of each pool, by its name.
    """
    if config.otlp_endpoint is None:
        return NoTracing()
    from .export import open_export
    from .tracing import Tracing

    tracing = Tracing(open_export(config), page_sizes)
    tracing.register_metrics(metrics)
    return tracing
