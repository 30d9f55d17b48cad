"""The sections of the front process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .options import option, option_list, secret


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The HTTP front."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "TCP port to listen on; 0 selects a free port", within="[0, 65535]")
    served_model_name: tuple[str, ...] = option_list(
        "the model's name in the API; repeatable: answers contain the first name (default: derived from MODEL)",
        flag="--served-model-name",
        metavar="NAME",
    )
    keep_alive_s: float = option(
        15.0,
        "seconds of silence after which a stream sends a comment line; 0 disables it",
        flag="--sse-keep-alive",
        metavar="S",
        within="[0, 31536000]",
    )
    shutdown_timeout: float = option(
        30.0, "seconds after the first SIGTERM until open requests are aborted", metavar="S", within="[0, 31536000]"
    )
    slow_reader_timeout: float = option(
        60.0,
        "seconds after which a client that has stopped reading its response is disconnected (Linux)",
        metavar="S",
        within="(0, 86400]",
    )
    max_body_bytes: int = option(
        32 * 1024 * 1024, "largest request body; larger ones get 413", within="[1, 1099511627776]"
    )
    incremental_streaming_output: bool = option(
        False, "chunks of /generate contain only the new text instead of all the text so far"
    )
    grammar_timeout: float = option(
        5.0,
        "time limit for compiling a request's grammar or JSON schema, in seconds; then 400",
        metavar="S",
        within="(0, 31536000]",
    )
    tool_call_parser: str = option(
        "auto", "format of tool calls in answers; auto detects it from the chat template", metavar="NAME"
    )
    reasoning_parser: str = option(
        "auto", "format of reasoning in answers, or none; auto detects it from the chat template", metavar="NAME"
    )
    metrics_compat: str = option(
        "", "also export metrics under the names of vllm, sglang, or vllm,sglang", metavar="NAMES"
    )
    clamp_max_tokens: Literal["none", "messages", "all"] = option(
        "messages",
        "routes on which a max_tokens that exceeds the context is reduced to fit; other routes answer it with 400",
    )
    max_client_priority: int = option(
        0, "highest priority that a request may ask for, -100 to 100", metavar="N", within="[-100, 100]"
    )


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Access."""

    api_key: tuple[str, ...] = option_list(
        "API key that requests must send; repeatable; prefer EBBTIDE_API_KEY or a file, because flags are visible",
        flag="--api-key",
        metavar="KEY",
        shown=False,
    )
    api_key_file: str | None = option(None, "file with one API key per line", metavar="FILE")
    admin_api_key: str | None = secret(
        "key for the admin routes; also in EBBTIDE_ADMIN_API_KEY (default: every API key is accepted)", metavar="KEY"
    )
    isolate_keys: bool = option(False, "share the prefix cache only between requests with the same key")
    allowed_origins: tuple[str, ...] = option_list(
        "origin of web pages that may use the API, or * for all; repeatable",
        flag="--allowed-origins",
        metavar="ORIGIN",
    )
    disable_docs: bool = option(False, "serve neither /docs nor /openapi.json")
    disable_console: bool = option(False, "serve no console at / and no /console")
    root_path: str = option("", "path under which a proxy exposes this server", metavar="PATH")
    ssl_certfile: str | None = option(None, "serve HTTPS with this certificate or chain, PEM", metavar="FILE")
    ssl_keyfile: str | None = option(
        None, "private key of the certificate (default: in --ssl-certfile)", metavar="FILE"
    )
    ssl_keyfile_password: str | None = secret("password of the private key", metavar="TEXT")
    ssl_ca_certs: str | None = option(
        None, "require client certificates signed by one of these authorities, PEM", metavar="FILE"
    )


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Limits of a request or client."""

    max_connections: int | None = option(
        None,
        "limit on open connections; further ones get 503, except probes (default: from the open-file limit)",
        metavar="N",
        within="[1, 2147483647]",
    )
    receive_timeout: float = option(
        60.0,
        "seconds within which a request must arrive, else 408; no limit if it arrives at 16 KiB/s or faster",
        metavar="S",
        within="(0, 31536000]",
    )
    max_requests_per_key: int | None = option(
        None,
        "limit on open requests per API key; further ones get 429 (default: no limit)",
        metavar="N",
        within="[1, 2147483647]",
    )
    queue_timeout: float | None = option(
        None,
        "seconds until a request must start to run, else 504; 429 at once if the expected wait is longer "
        "(default: no limit)",
        metavar="S",
        within="[0, 31536000]",
    )
    request_timeout: float | None = option(
        None, "seconds until a request must end, else 504 (default: no limit)", metavar="S", within="(0, 31536000]"
    )


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Traces."""

    otlp_endpoint: str | None = option(
        None,
        "send a trace of each request to this OpenTelemetry collector, such as http://127.0.0.1:4318; needs the extra "
        "otel",
        metavar="URL",
    )
    otlp_protocol: Literal["auto", "http/protobuf", "grpc"] = option(
        "auto",
        "protocol of --otlp-endpoint; auto: the value of OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or "
        "OTEL_EXPORTER_OTLP_PROTOCOL, otherwise http/protobuf",
    )
