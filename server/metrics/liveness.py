"""Whether the daemon lives and whether it would take a new request. Knows clocks and names, no sockets."""

from __future__ import annotations

from collections.abc import Callable

from ebbtide.config import WatchdogConfig
from ebbtide.errors import Rejected
from ebbtide.messages import Heartbeat

CHILDREN = ("scheduler", "detokenizer")
FRONT_TIMEOUT_FACTOR = 1.06  # a stuck process's own watchdog goes first: it can say more than that there is silence
NO_WORK_STATES = ("idle", "paused")
DEFAULTS = WatchdogConfig()
NO_HEARTBEAT = Heartbeat("scheduler", 0)


class Liveness:
    """What the front knows of its children. ``clock`` counts the seconds in which the front itself could listen."""

    def __init__(self, clock: Callable[[], float], config: WatchdogConfig = DEFAULTS) -> None:
        self._clock = clock
        self._config = config
        self._last_beat: dict[str, float] = {}
        self._heartbeats: dict[str, Heartbeat] = {}
        self._dead: list[str] = []
        self._draining = False
        self._restarting = False
        self._paused = False

    def mark_started(self) -> None:
        """The children said that they are ready: their silence is counted from now."""
        now = self._clock()
        self._last_beat = dict.fromkeys(CHILDREN, now)
        self._heartbeats = {}
        self._restarting = self._paused = False

    def record_heartbeat(self, heartbeat: Heartbeat) -> None:
        """A child's loop is alive."""
        if heartbeat.source in self._last_beat:
            self._last_beat[heartbeat.source] = self._clock()
            self._heartbeats[heartbeat.source] = heartbeat

    def start_draining(self) -> None:
        """No new work from now on."""
        self._draining = True

    def pause(self) -> None:
        """No new work until ``resume``, or until new children have started."""
        self._paused = True

    def resume(self) -> None:
        """New work again."""
        self._paused = False

    def mark_dead(self, name: str) -> None:
        """A child is gone."""
        self._dead.append(name)

    def mark_restarting(self) -> None:
        """New children take the place of the dead one: alive, and not ready before ``started``."""
        self._dead.clear()
        self._last_beat.clear()
        self._restarting = True

    @property
    def _scheduler(self) -> Heartbeat:
        """What the scheduler said last."""
        return self._heartbeats.get("scheduler", NO_HEARTBEAT)

    @property
    def stalled_s(self) -> float:
        """Seconds since the scheduler's last progress as far as the front knows; 0 when it has nothing to do."""
        if self._dead or "scheduler" not in self._last_beat or self._scheduler.state in NO_WORK_STATES:
            return 0.0
        return self._scheduler.stalled_s + self._clock() - self._last_beat["scheduler"]

    def timed_out_child(self) -> str | None:
        """The child that has been silent for so long that it counts as dead."""
        if self._dead:
            return None
        limit_s = self._config.watchdog_timeout * FRONT_TIMEOUT_FACTOR
        return next((name for name in self._last_beat if self.silence_s(name) > limit_s), None)

    def silence_s(self, name: str) -> float:
        """Seconds since the last heartbeat of a child; 0 while it loads."""
        now = self._clock()
        return now - self._last_beat.get(name, now)

    def unhealthy_reason(self) -> str | None:
        """Why ``/health`` is 503, or None."""
        if self._dead:
            return f"The {self._dead[0]} process is dead."
        return self._silent_for(self._config.watchdog_timeout)

    def refusal(self) -> Rejected | None:
        """The answer to a new request when none is taken now, or None when it is welcome."""
        if self._dead:
            return _refused(f"The {self._dead[0]} process is dead.", "engine_dead")
        if self._draining:
            return _refused("The server is shutting down and takes no new requests.", "draining")
        if self._restarting:
            return _refused("The engine has failed and is being started again.", "engine_restarting")
        if not self._last_beat:
            return _refused("The model is still loading.", "loading")
        if self._paused:
            return _refused("The server is paused (/continue_generation).", "paused")
        return self._engine_refusal()

    def _engine_refusal(self) -> Rejected | None:
        """The refusal of an engine that runs and does not work."""
        silent = self._silent_for(self._config.heartbeat_timeout)
        if silent:
            return _refused(silent, "engine_silent")
        if self._scheduler.reason:
            return _refused(f"Requests wait and none can run: {self._scheduler.reason}.", "engine_blocked")
        return None

    def require_ready(self) -> None:
        """Raises the refusal, if there is one."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal

    def describe(self) -> list[str]:
        """One line for each child, for a dump."""
        lines = []
        for name in self._last_beat:
            lines.append(f"{name}: last heartbeat {self.silence_s(name):.1f} s ago")
            said = self._heartbeats.get(name)
            lines.append(f"{name} says: {'nothing yet' if said is None else _in_words(said)}")
        lines.append(f"no progress for {self.stalled_s:.1f} s")
        refusal = self.refusal()
        return [*lines, "ready" if refusal is None else f"not ready: {refusal.message}"]

    def has_silent_child(self, seconds: float) -> bool:
        """Whether a child has been silent for longer."""
        return self._silent_for(seconds) is not None

    def _silent_for(self, seconds: float) -> str | None:
        for name in self._last_beat:
            silence_s = self.silence_s(name)
            if silence_s > seconds:
                return f"The {name} process has been silent for {silence_s:.0f} s."
        return None


def _in_words(said: Heartbeat) -> str:
    reason = f", {said.reason}" if said.reason else ""
    return f"{said.state}, {said.handled} messages handled, {said.num_requests} requests kept{reason}"


def _refused(message: str, code: str) -> Rejected:
    return Rejected(message, status=503, kind="overloaded_error", code=code, retry_after_s=5)
