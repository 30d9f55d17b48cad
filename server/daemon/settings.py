"""Checks the settings of the HTTP server before the model is loaded."""

from __future__ import annotations

from collections.abc import Iterable

from ebbtide.config import ServeConfig
from ebbtide.errors import StartupError

from ..http.api_keys import check_use_of_keys
from ..http.cors import check_origins_and_root_path
from ..http.tls import Tls, tls_from
from ..metrics.compat import parse_metric_aliases
from ..parsers.chat_template_profile import check_parsers
from ..tracing.settings import check_tracing


def check_settings(config: ServeConfig) -> Tls | None:
    """Return the TLS certificate, or None if none is configured. Raises StartupError if a setting is invalid."""
    check_origins_and_root_path(config.access)
    check_model_names(config.server.served_model_name)
    if not config.model and len(config.server.served_model_name) > 1:
        raise StartupError("--served-model-name may be given only once if the server has only an embedding model.")
    if config.model == "sim" and config.runner.tp > 1:
        raise StartupError("--tp must be 1 for sim: the simulated model has no weights to share among ranks.")
    check_use_of_keys(config.access, config.limits)
    parse_metric_aliases(config.server.metrics_compat)
    check_parsers(config.server.tool_call_parser, config.server.reasoning_parser)
    check_tracing(config.tracing)
    return tls_from(config.access)


def check_model_names(names: Iterable[str]) -> None:
    """Raise StartupError if a name is empty."""
    if not all(name.strip() for name in names):
        raise StartupError("--served-model-name must not be empty.")
