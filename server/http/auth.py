"""Authenticates requests by API key before they reach a route. The module does not depend on routes."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.errors import Rejected

from .error_replies import error_reply

CALLER = "ebbtide.caller"  # key of the Caller in the ASGI scope
# Paths that need no API key, because probes and metric scrapers send none. All other paths need a key if keys are set.
PUBLIC_PATHS = frozenset({"/health", "/health_generate", "/ready", "/metrics"})

RawHeaders = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated sender of a request."""

    owner: str = ""  # a hash of the key; "" without a key
    is_admin: bool = False  # True if the caller sent the admin key
    may_control: bool = False  # True if the caller may use admin routes


class Keys:
    """The API keys of this server. Only hashes are stored, so that no dump or repr can show a key."""

    def __init__(self, keys: Iterable[str] = (), admin_key: str | None = None) -> None:
        self._users = [_digest(key.encode()) for key in keys]
        self._admin = None if admin_key is None else _digest(admin_key.encode())

    @property
    def required(self) -> bool:
        """True if requests without a key are refused."""
        return bool(self._users)

    def caller(self, headers: RawHeaders) -> Caller | None:
        """Identify the caller by ``headers``.

        Returns None if a key is required and the headers contain no valid key.
        """
        found: Caller | None = None if self._users else Caller(may_control=self._admin is None)
        for digest in [_digest(key) for key in _presented_keys(headers)]:
            # Compare every key even after a match, because the duration must not reveal which key, or which part of a
            # key, matched.
            known = sum(hmac.compare_digest(digest, user) for user in self._users) > 0
            is_admin = self._admin is not None and hmac.compare_digest(digest, self._admin)
            if is_admin or (known and not (found and found.is_admin)):
                may_control = is_admin or self._admin is None
                found = Caller(digest.hex()[:32], is_admin=is_admin, may_control=may_control)
        return found


class KeyCheck:
    """Middleware that puts the caller into the ASGI scope.

    If keys are required, a request without a valid key is answered with 401, even if its path does not exist.
    Exceptions are ``PUBLIC_PATHS``, ``files`` and the method OPTIONS.
    """

    def __init__(self, app: ASGIApp, keys: Keys, root_path: str = "", files: Iterable[str] = ()) -> None:
        """files: paths of static files, which are served without a key, too."""
        self._app = app
        self._keys = keys
        public = PUBLIC_PATHS.union(files)
        self._open = public | {root_path + path for path in public}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._keys.caller(scope["headers"])
        is_open = scope["path"] in self._open or scope["method"] == "OPTIONS"
        if caller is None and not is_open:
            await error_reply(_no_key(), scope)(scope, receive, send)
            return
        scope[CALLER] = caller or Caller()
        await self._app(scope, receive, send)


def caller_of(request: Request) -> Caller:
    """Return the caller of the request."""
    caller: Caller = request.scope[CALLER]
    return caller


def owner_of(request: Request) -> str:
    """Return a stable identifier of the caller's API key, which cannot itself be used as a key; "" without a key."""
    return caller_of(request).owner


async def require_control(request: Request) -> None:
    """Raise Rejected unless the caller may use admin routes."""
    caller = caller_of(request)
    if caller.may_control:
        return
    if not caller.owner:
        raise _unauthorized("This route requires the admin key.")
    raise Rejected("This route requires the admin key.", status=403, kind="permission_error")


def _presented_keys(headers: RawHeaders) -> Iterator[bytes]:
    for name, value in headers:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()


def _digest(key: bytes) -> bytes:
    """Return the hash of a key. Its fixed length ensures that timing does not reveal the length of the key."""
    return hashlib.sha256(b"ebbtide api key\0" + key).digest()


def _unauthorized(message: str) -> Rejected:
    return Rejected(message, status=401, kind="authentication_error", code="invalid_api_key")


def _no_key() -> Rejected:
    return _unauthorized("The API key is missing or wrong. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
