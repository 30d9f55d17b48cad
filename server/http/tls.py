"""The certificate of an HTTPS server: read at the start, and again when its files change. Knows files, no sockets."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from ebbtide.config import AccessConfig
from ebbtide.errors import StartupError

log = logging.getLogger(__name__)


class Tls:
    """What new connections are encrypted with. Raises StartupError when the files do not make a certificate."""

    def __init__(self, config: AccessConfig) -> None:
        if config.ssl_certfile is None:
            raise StartupError("HTTPS needs a certificate: give --ssl-certfile too.")
        self._cert, self._key = config.ssl_certfile, config.ssl_keyfile
        self._password = config.ssl_keyfile_password or ""
        self._loaded_times = self._modification_times()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self._load(self.context)
            if config.ssl_ca_certs is not None:
                self.context.load_verify_locations(config.ssl_ca_certs)
                self.context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:  # ssl.SSLError is one
            raise StartupError(f"The certificate cannot be used: {_reason(error)}.") from error

    def reload_if_changed(self) -> bool:
        """Use the files' new content when they have changed; whether it is in use now. A broken one times nothing."""
        times = self._modification_times()
        if times == self._loaded_times:
            return False
        self._loaded_times = times
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # a pair that does not match would spoil the one in use
            self._load(self.context)
        except OSError as error:
            log.error("the changed certificate cannot be used and the last one stays: %s", _reason(error))
            return False
        log.info("the changed certificate is in use for new connections")
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        # With a function as the password OpenSSL never asks on the terminal, which would hang a daemon.
        context.load_cert_chain(self._cert, self._key, lambda: self._password)

    def _modification_times(self) -> list[int]:
        """What times when a file is written or replaced."""
        paths = [Path(name) for name in (self._cert, self._key) if name is not None]
        return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]


def tls_from(config: AccessConfig) -> Tls | None:
    """The certificate, or None for plain HTTP. Raises StartupError."""
    files = (config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs, config.ssl_keyfile_password)
    return None if all(value is None for value in files) else Tls(config)


def _reason(error: OSError) -> str:
    text = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return (text or str(error)).replace("_", " ").lower()
