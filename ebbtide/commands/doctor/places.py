"""Checks of the port and of the folders that a server uses."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ebbtide.config import ServerConfig
from ebbtide.hub.cache import hub_cache_dir
from ebbtide.runtime.daemon_record import living_records
from ebbtide.runtime.socket_directory import MAX_SOCKET_PATH
from ebbtide.tokenization.model_files import cache_dir

from ..table import size_text
from .check import Check

LITTLE_SPACE = 5_000_000_000  # bytes
SOCKET_NAME_LENGTH = 40  # maximum number of bytes that follow TMPDIR in the path of a socket


def check_port(port: int | None = None) -> Check:
    """Check that the port is free. port: None for the default port of ``ebbtide serve``."""
    config = ServerConfig()
    port = config.port if port is None else port
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.host, port))
        except OSError as error:
            return _taken(port, error)
    return Check("port", "ok", f"{port} is free")


def _taken(port: int, error: OSError) -> Check:
    owner = next((record for record in living_records() if record.url.endswith(f":{port}")), None)
    if owner is not None:
        return Check("port", "ok", f"{port} is used by your server {owner.pid}, which serves {owner.names[0]}")
    return Check("port", "warn", f"{port} cannot be used: {error.strerror}", "ebbtide serve --port 0, or another port")


def check_folders() -> Iterator[Check]:
    """Check that the folders for models, kernels and sockets are writable, large enough, and short enough as paths."""
    yield _check_folder("cache", cache_dir(), "EBBTIDE_CACHE")
    yield _check_folder("Hub cache", hub_cache_dir(), "HF_HUB_CACHE")
    folder = Path(tempfile.gettempdir())
    if len(os.fsencode(folder)) + SOCKET_NAME_LENGTH > MAX_SOCKET_PATH:
        yield Check("sockets", "fail", f"the path {folder} is too long for sockets", "export TMPDIR=/tmp")
    else:
        yield Check("sockets", "ok", str(folder))


def _check_folder(topic: str, folder: Path, variable: str) -> Check:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=existing):
            pass
    except OSError as error:
        text = f"{folder} cannot be written: {error.strerror}"
        return Check(topic, "fail", text, f"set {variable} to a folder that you can write")
    free = shutil.disk_usage(existing).free
    found = f"{folder}, {size_text(free)} free"
    if free < LITTLE_SPACE:
        return Check(topic, "warn", f"little space: {found}", f"ebbtide rm, or set {variable} to another disk")
    return Check(topic, "ok", found)
