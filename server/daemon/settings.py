"""Checks the settings of the HTTP server before the model is loaded."""

from __future__ import annotations

from ebbtide.config import ServeConfig
from ebbtide.errors import StartupError

from ..http.api_keys import check_use_of_keys
from ..http.cors import check_origins_and_root_path
from ..http.tls import Tls, tls_from
from ..metrics.compat import parse_metric_aliases
from ..parsers.chat_template_profile import check_parsers


def check_settings(config: ServeConfig) -> Tls | None:
    """Return the TLS certificate, if one is configured. Raises StartupError for the first setting that is not valid."""
    check_origins_and_root_path(config.access)
    check_model_name(config.server.served_model_name)
    check_use_of_keys(config.access, config.limits)
    parse_metric_aliases(config.server.metrics_compat)
    check_parsers(config.server.tool_call_parser, config.server.reasoning_parser)
    return tls_from(config.access)


def check_model_name(name: str | None) -> None:
    """Raise StartupError for an empty name. None is valid: the name is then derived from the path of the model."""
    if name is not None and not name.strip():
        raise StartupError("--served-model-name must not be empty.")
