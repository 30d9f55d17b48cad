"""What the sender of a request may do with the engine. Changes orders on their way to it; knows no routes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from msgspec import structs

from ebbtide.config import AccessConfig, LimitsConfig
from ebbtide.errors import Rejected
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest

from .auth import Caller, Keys


@dataclass(frozen=True, slots=True)
class Access:
    """The rules and the keys. Made by ``access_from``."""

    config: AccessConfig = field(default_factory=AccessConfig)
    keys: Keys = field(default_factory=Keys)
    limits: LimitsConfig = field(default_factory=LimitsConfig)

    def apply_limits(self, prepared: PreparedRequest, caller: Caller, max_priority: int) -> PreparedRequest:
        """``prepared`` as the sender may have it: its priority at most ``max_priority`` unless the sender is the admin.

        A session is looked for among the sender's own; the server's time limit holds if the request's is longer.
        """
        priority = prepared.priority if caller.is_admin else min(prepared.priority, max_priority)
        session = None if prepared.session is None else structs.replace(prepared.session, owner=caller.owner)
        namespace = self.namespace(prepared.namespace, caller)
        limits_s = [limit for limit in (prepared.timeout_s, self.limits.request_timeout) if limit is not None]
        return replace(
            prepared,
            priority=priority,
            namespace=namespace,
            session=session,
            owner=caller.owner,
            queue_timeout_s=self.limits.queue_timeout,
            timeout_s=min(limits_s, default=None),
        )

    def check_concurrency(self, caller: Caller, num_open: int) -> None:
        """Raises Rejected when the sender's key has as many requests open as one may have. The admin has no limit."""
        limit = self.limits.max_requests_per_key
        if limit is not None and caller.owner and not caller.is_admin and num_open >= limit:
            text = (
                f"This API key has {num_open} requests open; no more than {limit} are allowed (--max-requests-per-key)."
            )
            raise Rejected(text, status=429, kind="rate_limit_error", code="queue_full", retry_after_s=1)

    def namespace(self, asked: str, caller: Caller) -> str:
        """The part of the prefix cache that the sender may use; the tag keeps keys apart from salts and other names."""
        return f"key:{caller.owner}|{asked}" if self.config.isolate_keys and caller.owner else asked


def access_from(config: AccessConfig, limits: LimitsConfig | None = None) -> Access:
    """The rules with the keys of a configuration that is complete."""
    return Access(config, Keys(config.api_key, config.admin_api_key), limits or LimitsConfig())
