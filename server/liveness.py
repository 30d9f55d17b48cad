"""Whether the daemon lives and whether it would take a new request. Knows clocks and names, no sockets."""

from __future__ import annotations

from collections.abc import Callable

from ebbtide.errors import Rejected

HEARTBEAT_TIMEOUT_S = 20.0  # longer than any step
WATCHDOG_TIMEOUT_S = 300.0
CHILDREN = ("scheduler", "detokenizer")


class Liveness:
    """What the front knows of its children. ``clock`` counts seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_beat: dict[str, float] = {}
        self._dead: list[str] = []
        self._draining = False

    def started(self) -> None:
        """The children said that they are ready: their silence is counted from now."""
        now = self._clock()
        self._last_beat = dict.fromkeys(CHILDREN, now)

    def beat(self, source: str) -> None:
        """A child's loop is alive."""
        if source in self._last_beat:
            self._last_beat[source] = self._clock()

    def drain(self) -> None:
        """No new work from now on."""
        self._draining = True

    def died(self, name: str) -> None:
        """A child is gone for good."""
        self._dead.append(name)

    def ill(self) -> str | None:
        """Why ``/health`` is 503, or None."""
        if self._dead:
            return f"The {self._dead[0]} process is dead."
        return self._silent_for(WATCHDOG_TIMEOUT_S)

    def refusal(self) -> Rejected | None:
        """The answer to a new request when none is taken now, or None when it is welcome."""
        if not self._last_beat:
            return _refused("The model is still loading.", "loading")
        if self._dead:
            return _refused(f"The {self._dead[0]} process is dead.", "engine_dead")
        if self._draining:
            return _refused("The server is shutting down and takes no new requests.", "draining")
        silent = self._silent_for(HEARTBEAT_TIMEOUT_S)
        return _refused(silent, "engine_silent") if silent else None

    def require_ready(self) -> None:
        """Raises the refusal, if there is one."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal

    def _silent_for(self, seconds: float) -> str | None:
        now = self._clock()
        for name, last in self._last_beat.items():
            if now - last > seconds:
                return f"The {name} process has been silent for {now - last:.0f} s."
        return None


def _refused(message: str, code: str) -> Rejected:
    return Rejected(message, status=503, kind="overloaded_error", code=code, retry_after_s=5)
