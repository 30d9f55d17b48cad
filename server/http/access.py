"""Limits per API key: priority, concurrency, timeouts, cache isolation. The module does not depend on the routes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ebbtide.config import AccessConfig, LimitsConfig
from ebbtide.errors import Rejected
from ebbtide.tokenizer_mgr.prepared_request import Sender

from .auth import Caller, Keys


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules and the keys. Built by ``access_from``."""

    config: AccessConfig = field(default_factory=AccessConfig)
    keys: Keys = field(default_factory=Keys)
    limits: LimitsConfig = field(default_factory=LimitsConfig)

    def sender(
        self, caller: Caller, *, ids: tuple[str, ...] = (), timeout_s: float | None = None, max_priority: int = 0
    ) -> Sender:
        """Return the sender of a request, with its limits.

        ids: the ids by which the client knows the request.
        timeout_s: the time limit that the request asks for.
        max_priority: the maximum priority of callers other than the admin.
        """
        limits_s = [limit for limit in (timeout_s, self.limits.request_timeout) if limit is not None]
        return Sender(
            ids=ids,
            owner=caller.owner,
            max_priority=None if caller.is_admin else max_priority,
            is_isolated=self.config.isolate_keys,
            queue_timeout_s=self.limits.queue_timeout,
            timeout_s=min(limits_s, default=None),
        )

    def check_concurrency(self, caller: Caller, num_open: int) -> None:
        """Raise Rejected if the caller's API key has reached its limit of open requests.

        The limit does not apply to the admin key.
        """
        limit = self.limits.max_requests_per_key
        if limit is not None and caller.owner and not caller.is_admin and num_open >= limit:
            text = f"This API key has {num_open} open requests; the limit is {limit} (--max-requests-per-key)."
            raise Rejected(text, status=429, kind="rate_limit_error", code="queue_full", retry_after_s=1)


def access_from(config: AccessConfig, limits: LimitsConfig | None = None) -> Access:
    """Build the access rules. ``config`` must already contain the API keys of all sources."""
    return Access(config, Keys(config.api_key, config.admin_api_key), limits or LimitsConfig())
