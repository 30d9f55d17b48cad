"""The gauges that the scheduler reports in ``Stats``."""

from __future__ import annotations

from .metrics import pool_gauges
from .sessions.session_controller import SessionController
from .state import State


def load_gauges(state: State, sessions: SessionController) -> dict[str, float]:
    """Return the gauges by name. See ``Stats``."""
    accounting = state.pool.accounting()
    size = state.pool.page_size
    usage = {pool.name: 1 - pool.usable_pages / max(pool.capacity, 1) for pool in state.kv_pools}
    gauges: dict[str, float] = {
        "num_running_reqs": len(state.running),
        "num_queue_reqs": state.lifecycle.num_queued,
        "num_retracted_reqs": state.num_retracted,
        "num_grammar_queue_reqs": state.grammars.num_waiting,
        "expected_queue_seconds": state.waits.expected_s(len(state.waiting), state.metrics.now),
        "new_token_ratio": state.ratio.value,
        "token_usage": max(usage.values()),
        "max_total_num_tokens": accounting.total * size,
        "page_size": size,
        "num_streaming_sessions": sessions.num_streaming,
        "streaming_session_held_tokens": accounting.session_held * size,
    }
    gauges |= {f"kv_pool_usage{{pool={name}}}": share for name, share in usage.items()}
    for pool in state.pools:
        gauges |= pool_gauges(pool)
    return gauges
