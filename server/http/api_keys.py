"""Reads the API keys from flags, environment variables and a file, and hides them from the process list."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path

from ebbtide.config import AccessConfig, LimitsConfig
from ebbtide.errors import StartupError

KEYS_VARIABLE = "EBBTIDE_API_KEY"
ADMIN_KEY_VARIABLE = "EBBTIDE_ADMIN_API_KEY"
SECRET_FLAGS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")
VALID_KEY = re.compile(r"[!-~]+", re.ASCII)
HIDDEN = "***"


def with_all_keys(config: AccessConfig, environ: MutableMapping[str, str]) -> AccessConfig:
    """Return ``config`` with the API keys of all sources: flags, environment variables and key file.

    Removes the variables from ``environ``, because child processes do not need them. Raises StartupError if the file
    cannot be read, or if a key is invalid.
    """
    keys = [*config.api_key, *environ.pop(KEYS_VARIABLE, "").split(), *_from_file(config.api_key_file)]
    admin_key = environ.pop(ADMIN_KEY_VARIABLE, "") or None
    if config.admin_api_key is not None:
        admin_key = config.admin_api_key
    for key in (*keys, *([] if admin_key is None else [admin_key])):
        if not VALID_KEY.fullmatch(key):
            raise StartupError("An API key must consist of one or more visible ASCII characters without spaces.")
    if admin_key in keys:
        raise StartupError("The admin key must not be one of the other API keys.")
    return replace(config, api_key=tuple(dict.fromkeys(keys)), admin_api_key=admin_key)


def check_use_of_keys(config: AccessConfig, limits: LimitsConfig) -> None:
    """Raise StartupError if a per-key setting is used without API keys."""
    if config.api_key:
        return
    if config.isolate_keys:
        raise StartupError("--isolate-keys requires API keys: set --api-key, --api-key-file or EBBTIDE_API_KEY.")
    if limits.max_requests_per_key is not None:
        raise StartupError(
            "--max-requests-per-key requires API keys: set --api-key, --api-key-file or EBBTIDE_API_KEY."
        )


def no_auth_warning(config: AccessConfig, address: str) -> str | None:
    """Return a warning if anyone who can reach the IP ``address`` may use the server; None if access is restricted."""
    if config.api_key or config.ssl_ca_certs or ipaddress.ip_address(address).is_loopback:
        return None
    return f"listening on {address} without API keys: anyone who can reach this port may use and administer the server"


def masked(words: Sequence[str]) -> str | None:
    """Return the command line with masked secrets; None if it contains no secrets."""
    hidden: list[str] = []
    for index, word in enumerate(words):
        flag = word.partition("=")[0]
        if index and words[index - 1] in SECRET_FLAGS:
            hidden.append(HIDDEN)
        else:
            hidden.append(f"{flag}={HIDDEN}" if flag in SECRET_FLAGS and "=" in word else word)
    return None if hidden == list(words) else shlex.join(hidden)


def _from_file(path: str | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise StartupError(f"The key file {path!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise StartupError(f"The key file {path!r} is not UTF-8 text.") from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise StartupError(f"The key file {path!r} contains no key.")
    return keys
