"""Starts the daemon and cleans up on every exit."""

from __future__ import annotations

import faulthandler
import os
import signal

from ebbtide.config import ServeConfig
from ebbtide.runtime.garbage import without_collections
from ebbtide.runtime.log import setup_logging
from ebbtide.runtime.socket_directory import socket_directory
from ebbtide.tokenization.model_files import resolve_model

from ..http.listening import listen
from .engine import Engine
from .service_manager import take_service_manager
from .stop_signals import StopSignals


def launch(config: ServeConfig) -> int:
    """Serve until a stop signal, and return the exit code.

    Returns 0 after a stop signal; 1 if a child process ended and no restart is left, or 70 if it was stuck. Main thread
    only. Raises StartupError if the daemon cannot start.
    """
    setup_logging("front", config.log.log_level, config.log.log_format)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signals = StopSignals()
    signals.install()
    service = take_service_manager(os.environ)
    files = resolve_model(config.model)
    with (
        listen(
            config.server.host, config.server.port, slow_reader_timeout_s=config.server.slow_reader_timeout
        ) as listener,
        socket_directory() as directory,
        Engine(config, files, directory) as engine,
    ):
        with without_collections():
            from .daemon import run_daemon  # imports the HTTP server while the engine loads

        return run_daemon(config, engine, listener, signals, service)
