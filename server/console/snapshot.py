"""The state that the console shows, and the selection of the part that a caller may see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ebbtide.messages import Inspection, RequestInfo, SessionInfo

from ..admin.pressure import load_summary
from ..admin.sessions import session_json
from ..http.auth import Caller
from ..state import AppState

TOTALS = {  # name in the snapshot -> metric
    "output_tokens": "generation_tokens_total",
    "prompt_tokens": "prompt_tokens_total",
    "cached_tokens": "cached_tokens_total",
    "recomputed_tokens": "num_recomputed_tokens_total",
    "evicted_tokens": "evicted_tokens_total",
    "retractions": "num_retracted_requests_total",
    "finished": "num_requests_total",
    "aborted": "num_aborted_requests_total",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the server at one moment.

    Attributes:
        number: position in the sequence of snapshots, from 1.
        common: the part that every caller may see, as JSON values.
        inspection: the open requests and sessions; None if the engine has not answered.
        owners: rid → owner, for the requests that are open in the front process.
    """

    number: int
    common: Mapping[str, Any]
    inspection: Inspection | None = None
    owners: Mapping[str, str] = field(default_factory=dict)


def common_part(state: AppState, now: float) -> dict[str, Any]:
    """Return the part of a snapshot that every caller may see.

    now: Unix time in seconds.
    """
    refusal = state.liveness.refusal()
    metrics = state.metrics
    return {
        "time": round(now, 3),
        "status": "ready" if refusal is None else (refusal.code or "unavailable"),
        "reason": "" if refusal is None else refusal.message,
        "load": load_summary(metrics.gauges),
        "open_http_requests": state.manager.num_open,
        "cache_hit_rate": metrics.hit_rate,
        "totals": {name: metrics.total(key) for name, key in TOTALS.items()},
    }


def view(snapshot: Snapshot, caller: Caller) -> dict[str, Any]:
    """Return the part of ``snapshot`` that ``caller`` may see.

    A caller that may use admin routes sees all requests and sessions; other callers see those of their own key.
    """
    shown = snapshot.inspection
    if shown is None:
        return {**snapshot.common, "requests": None, "sessions": None}
    requests = [*shown.running, *shown.waiting]
    mine = [req for req in requests if caller.may_control or snapshot.owners.get(req.rid) == caller.owner]
    sessions = [session for session in shown.sessions if caller.may_control or session.owner == caller.owner]
    return {
        **snapshot.common,
        "requests": [_request(req, abortable=_may_abort(req, snapshot.owners, caller)) for req in mine],
        "sessions": _sessions(sessions),
        "num_sessions": shown.num_sessions if caller.may_control else len(sessions),
    }


def _may_abort(req: RequestInfo, owners: Mapping[str, str], caller: Caller) -> bool:
    """Return True if the console may offer to abort the request. POST /abort_request checks the permission itself."""
    return caller.may_control and (caller.is_admin or owners.get(req.rid) == caller.owner)


def _request(req: RequestInfo, *, abortable: bool) -> dict[str, Any]:
    return {**msgspec.structs.asdict(req), "abortable": abortable}


def _sessions(sessions: Iterable[SessionInfo]) -> list[dict[str, Any]]:
    return [session_json(session) for session in sessions]
