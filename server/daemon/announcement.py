"""Prints and logs that the daemon is ready: its address, an example request, and the sizes of the models."""

from __future__ import annotations

import json
import logging
import shlex
import socket

from ebbtide.config import ServeConfig
from ebbtide.messages import RunnerInfo

from ..http.api_keys import no_auth_warning
from ..loaded_models import LoadedModels

log = logging.getLogger(__name__)


def announce(models: LoadedModels, config: ServeConfig, listener: socket.socket, url: str) -> None:
    """Print the address and an example request. Log the sizes and, if requests need no API key, a warning."""
    if models.chat is not None:
        log_sizes(models.chat.info)
    if models.encoder is not None:
        info = models.encoder.info
        what = "scores of pairs" if info.scores_pairs else f"vectors with {info.dimensions} dimensions"
        log.info("embedding model %s: %s, context %d", models.encoder.name, what, info.context_length)
    warning = no_auth_warning(config.access, listener.getsockname()[0])
    if warning is not None:
        log.warning("%s", warning)
    names = [model.name for model in (models.chat, models.encoder) if model is not None]
    print(f"ebbtide serves {' and '.join(names)} on {url}", flush=True)
    if models.chat is not None and not config.access.disable_console:
        print(f"Console: {url}/", flush=True)
    path, body = _example(models)
    key = "-H 'x-api-key: YOUR KEY' " if config.access.api_key else ""
    print(
        f"Try it:  curl -N {url}{path} -H 'Content-Type: application/json' {key}-d {shlex.quote(json.dumps(body))}",
        flush=True,
    )


def _example(models: LoadedModels) -> tuple[str, dict[str, object]]:
    """Return the path and the body of an example request."""
    if models.chat is not None:
        messages = [{"role": "user", "content": "What is a tide?"}]
        return "/v1/chat/completions", {"model": models.chat.name, "messages": messages, "stream": True}
    if models.encoder is not None and models.encoder.scores_pairs:
        return "/v1/rerank", {"query": "What is a tide?", "documents": ["The sea rises and falls.", "Bread is baked."]}
    return "/v1/embeddings", {"model": models.name, "input": "What is a tide?"}


def log_sizes(runner: RunnerInfo | None) -> None:
    """Log the sizes of the chat model's memory. Does nothing without a chat model."""
    if runner is None:
        return
    if runner.num_host_pages:
        log.info("host tier: %d tokens", runner.num_host_pages * runner.page_size)
    log.info(
        "KV pool: %d tokens in pages of %d (%.0f MiB%s), context %d, %s on %s, %s attention, %sdeterministic",
        runner.num_pages * runner.page_size,
        runner.page_size,
        runner.pool_bytes / 2**20,
        ", allocated on use" if runner.device == "cpu" else "",
        runner.context_length,
        runner.dtype,
        runner.device,
        runner.attention or "no",
        "" if runner.deterministic else "not ",
    )
