"""Liveness and readiness of the daemon, based on heartbeats of its child processes.

The module does not depend on sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ebbtide.config import WatchdogConfig
from ebbtide.errors import Rejected
from ebbtide.messages import Heartbeat

CHILDREN = ("scheduler", "detokenizer")
# Time for the watchdog of a stuck process to act first, because its dump has more detail.
EXTRA_SHARE = 0.06  # of the watchdog timeout
LEAST_EXTRA_S = 1.0  # on a busy machine, the watchdog of a stuck process can run up to a second late
NO_WORK_STATES = ("idle", "paused")
DEFAULTS = WatchdogConfig()
NO_HEARTBEAT = Heartbeat("scheduler", 0)


def front_timeout_s(watchdog_timeout_s: float) -> float:
    """Return the seconds after which the front process kills a child that its own watchdog should have ended."""
    return watchdog_timeout_s + max(EXTRA_SHARE * watchdog_timeout_s, LEAST_EXTRA_S)


class Liveness:
    """Tracks the state of the child processes.

    clock: returns the time in seconds, excluding time in which the machine was suspended.
    """

    def __init__(
        self, clock: Callable[[], float], config: WatchdogConfig = DEFAULTS, children: Sequence[str] = CHILDREN
    ) -> None:
        """children: names of the processes that send heartbeats."""
        self._clock = clock
        self._children = children
        self._config = config
        self._last_beat: dict[str, float] = {}
        self._heartbeats: dict[str, Heartbeat] = {}
        self._dead: list[str] = []
        self._draining = False
        self._restarting = False
        self._paused = False

    def mark_started(self) -> None:
        """Record that the child processes are ready and send heartbeats from now on."""
        now = self._clock()
        self._last_beat = dict.fromkeys(self._children, now)
        self._heartbeats = {}
        self._restarting = self._paused = False

    def record_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Store the heartbeat of a child process. Ignore a heartbeat from an unknown source."""
        if heartbeat.source in self._last_beat:
            self._last_beat[heartbeat.source] = self._clock()
            self._heartbeats[heartbeat.source] = heartbeat

    def start_draining(self) -> None:
        """Refuse new requests permanently."""
        self._draining = True

    @property
    def is_draining(self) -> bool:
        """True if the server is shutting down."""
        return self._draining

    @property
    def is_paused(self) -> bool:
        """True if the engine is paused and runs no steps until ``resume``."""
        return self._paused

    def pause(self) -> None:
        """Refuse new requests until ``resume``, or until new child processes have started."""
        self._paused = True

    def resume(self) -> None:
        """Accept new requests again."""
        self._paused = False

    def mark_dead(self, name: str) -> None:
        """Record that the child process ``name`` has ended."""
        self._dead.append(name)

    def mark_restarting(self) -> None:
        """Record that new child processes are loading. They are alive, but not ready until ``mark_started``."""
        self._dead.clear()
        self._last_beat.clear()
        self._restarting = True

    @property
    def _scheduler(self) -> Heartbeat:
        """The scheduler's last heartbeat."""
        return self._heartbeats.get("scheduler", NO_HEARTBEAT)

    @property
    def stalled_s(self) -> float:
        """Seconds since the scheduler's last known progress; 0 if it has no work."""
        if self._dead or "scheduler" not in self._last_beat or self._scheduler.state in NO_WORK_STATES:
            return 0.0
        return self._scheduler.stalled_s + self._clock() - self._last_beat["scheduler"]

    def timed_out_child(self) -> str | None:
        """Return a child process whose last heartbeat is older than the watchdog timeout; None if there is none."""
        if self._dead:
            return None
        limit_s = front_timeout_s(self._config.watchdog_timeout)
        return next((name for name in self._last_beat if self.silence_s(name) > limit_s), None)

    def silence_s(self, name: str) -> float:
        """Return the number of seconds since the last heartbeat of a child process; 0 while it is loading."""
        now = self._clock()
        return now - self._last_beat.get(name, now)

    def unhealthy_reason(self) -> str | None:
        """Return the reason why ``/health`` answers 503; None if it answers 200."""
        if self._dead:
            return f"The {self._dead[0]} process is dead."
        return self._silence_reason(self._config.watchdog_timeout)

    def refusal(self) -> Rejected | None:
        """Return the error with which new requests are refused; None if they are accepted."""
        if self._dead:
            return _refused(f"The {self._dead[0]} process is dead.", "engine_dead")
        if self._draining:
            return _refused("The server is shutting down and accepts no new requests.", "draining")
        if self._restarting:
            return _refused("The engine has failed and is restarting.", "engine_restarting")
        if not self._last_beat:
            return _refused("The model is still loading.", "loading")
        if self._paused:
            return _refused("The server is paused; POST /continue_generation resumes it.", "paused")
        return self._engine_refusal()

    def _engine_refusal(self) -> Rejected | None:
        """Return the error if the engine is silent or blocked, else None."""
        silent = self._silence_reason(self._config.heartbeat_timeout)
        if silent:
            return _refused(silent, "engine_silent")
        if self._scheduler.reason:
            return _refused(f"Requests are waiting but none can run: {self._scheduler.reason}.", "engine_blocked")
        return None

    def require_ready(self) -> None:
        """Raise Rejected unless new requests are accepted."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal

    def describe(self) -> list[str]:
        """Return lines for a dump: the last heartbeat of each child process, the progress and the readiness."""
        lines = []
        for name in self._last_beat:
            lines.append(f"{name}: last heartbeat {self.silence_s(name):.1f} s ago")
            heartbeat = self._heartbeats.get(name)
            lines.append(f"{name} reported: {'nothing yet' if heartbeat is None else _describe(heartbeat)}")
        lines.append(f"no progress for {self.stalled_s:.1f} s")
        refusal = self.refusal()
        return [*lines, "ready" if refusal is None else f"not ready: {refusal.message}"]

    def has_silent_child(self, seconds: float) -> bool:
        """Return True if a child process has sent no heartbeat for longer than ``seconds``."""
        return self._silence_reason(seconds) is not None

    def _silence_reason(self, seconds: float) -> str | None:
        for name in self._last_beat:
            silence_s = self.silence_s(name)
            if silence_s > seconds:
                return f"The {name} process has been silent for {silence_s:.0f} s."
        return None


def _describe(heartbeat: Heartbeat) -> str:
    reason = f", {heartbeat.reason}" if heartbeat.reason else ""
    return f"{heartbeat.state}, {heartbeat.handled} messages handled, {heartbeat.num_requests} requests held{reason}"


def _refused(message: str, code: str) -> Rejected:
    return Rejected(message, status=503, kind="overloaded_error", code=code, retry_after_s=5)
