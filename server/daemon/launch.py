"""Starts the daemon, and cleans up when it exits for any reason."""

from __future__ import annotations

import faulthandler
import os
import signal

from ebbtide.config import ServeConfig
from ebbtide.runtime.garbage import without_collections
from ebbtide.runtime.log import setup_logging
from ebbtide.runtime.socket_directory import socket_directory
from ebbtide.tokenization.model_files import resolve_embedding_model, resolve_model

from ..http.listening import listen
from .engine import Engine
from .service_manager import take_service_manager
from .stop_signals import StopSignals


def launch(config: ServeConfig) -> int:
    """Serve until a stop signal arrives. Return the exit code.

    The exit code is 0 after a stop signal. If a child process has ended and no restart is left, it is 70 if that
    process was stuck, else 1. Call this function on the main thread. Raises StartupError if the daemon cannot start.
    """
    setup_logging("front", config.log.log_level, config.log.log_format)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signals = StopSignals()
    signals.install()
    service = take_service_manager(os.environ)
    with socket_directory() as directory, Engine(config, directory) as engine:
        # The imports below run while the engine imports its modules, and then while it loads the model.
        with without_collections():
            from .settings import check_settings

        tls = check_settings(config)
        files = resolve_model(config.model) if config.model else None
        encoder_files = resolve_embedding_model(config.encoder.embedding_model)
        with listen(
            config.server.host, config.server.port, slow_reader_timeout_s=config.server.slow_reader_timeout
        ) as listener:
            engine.load(files, encoder_files)
            with without_collections():
                from .daemon import run_daemon

            return run_daemon(config, engine, listener, signals, service, tls)
