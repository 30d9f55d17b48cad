"""Checks the settings of traces before the model is loaded. This module does not import OpenTelemetry."""

from __future__ import annotations

import os
from importlib.util import find_spec
from urllib.parse import urlsplit

from ebbtide.config import TracingConfig
from ebbtide.errors import StartupError

HTTP = "http/protobuf"
GRPC = "grpc"
PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
TRACES_PATH = "/v1/traces"
MODULES = {HTTP: "opentelemetry.exporter.otlp.proto.http", GRPC: "opentelemetry.exporter.otlp.proto.grpc"}


def check_tracing(config: TracingConfig) -> None:
    """Raise StartupError if a setting is invalid or a package is missing."""
    if config.otlp_endpoint is None:
        return
    protocol = protocol_of(config)
    url = urlsplit(config.otlp_endpoint)
    if protocol == HTTP and (url.scheme not in ("http", "https") or not url.hostname):
        raise StartupError(
            f"--otlp-endpoint must be a URL such as http://127.0.0.1:4318, not {config.otlp_endpoint!r}."
        )
    if not _is_installed("opentelemetry.sdk") or not _is_installed(MODULES[protocol]):
        raise StartupError("--otlp-endpoint needs packages that are not installed: pip install 'ebbtide[otel]'")


def protocol_of(config: TracingConfig) -> str:
    """Return the protocol. Raises StartupError if the environment names an unknown protocol."""
    if config.otlp_protocol != "auto":
        return config.otlp_protocol
    for name in PROTOCOL_VARIABLES:
        value = os.environ.get(name)
        if value:
            if value not in MODULES:
                raise StartupError(f"{name} must be {HTTP} or {GRPC}, not {value!r}.")
            return value
    return HTTP


def http_url(endpoint: str) -> str:
    """Return the URL for OTLP over HTTP: ``endpoint``, with the path ``TRACES_PATH`` unless it has a path."""
    return endpoint.rstrip("/") + TRACES_PATH if urlsplit(endpoint).path in ("", "/") else endpoint


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
