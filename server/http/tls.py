"""The TLS certificate of the HTTPS server: loaded at the start, and reloaded when its files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from ebbtide.config import AccessConfig
from ebbtide.errors import StartupError

log = logging.getLogger(__name__)


class Tls:
    """Holds the SSL context for new connections.

    The constructor raises StartupError if the certificate files cannot be used.
    """

    def __init__(self, config: AccessConfig) -> None:
        if config.ssl_certfile is None:
            raise StartupError("HTTPS requires a certificate: set --ssl-certfile, too.")
        self._cert, self._key = config.ssl_certfile, config.ssl_keyfile
        self._password = config.ssl_keyfile_password or ""
        self._loaded_times = self._modification_times()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self._load(self.context)
            if config.ssl_ca_certs is not None:
                self.context.load_verify_locations(config.ssl_ca_certs)
                self.context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:  # ssl.SSLError is a subclass
            raise StartupError(f"The certificate cannot be used: {_reason(error)}.") from error

    def reload_if_changed(self) -> bool:
        """Reload the files if they have changed. Return True if a new certificate is in use.

        If the new files cannot be used, the previous certificate stays in use.
        """
        times = self._modification_times()
        if times == self._loaded_times:
            return False
        self._loaded_times = times
        try:
            # Test the files first, because a mismatched pair would break the context in use.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except OSError as error:
            log.error("the changed certificate cannot be used; the previous one stays in use: %s", _reason(error))
            return False
        log.info("the changed certificate is in use for new connections")
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        # A password callback prevents OpenSSL from prompting on the terminal, which would block the daemon.
        context.load_cert_chain(self._cert, self._key, lambda: self._password)

    def _modification_times(self) -> list[int]:
        """Return the modification times of the certificate and key files; 0 for a missing file."""
        paths = [Path(name) for name in (self._cert, self._key) if name is not None]
        return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]


def tls_from(config: AccessConfig) -> Tls | None:
    """Load the certificate. Returns None if no certificate is configured. Raises StartupError if it cannot be used."""
    files = (config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs, config.ssl_keyfile_password)
    return None if all(value is None for value in files) else Tls(config)


def _reason(error: OSError) -> str:
    text = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return (text or str(error)).replace("_", " ").lower()
