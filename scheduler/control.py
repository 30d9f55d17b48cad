"""What an operator asks of the whole scheduler: flush the cache, pause, continue. Time is passed in, in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.messages import ControlReq, Reply

from .state import State


@dataclass(frozen=True, slots=True)
class _Wish:
    """A flush that waits for a moment without requests."""

    call: str
    until_s: float


class Control:
    """paused: no new step is planned; requests keep what they have. num_flushes: how often the cache was emptied."""

    def __init__(self, state: State) -> None:
        self.paused = False
        self.num_flushes = 0
        self._state = state
        self._wishes: list[_Wish] = []

    def take(self, message: ControlReq, now: float) -> None:
        """Carry out one request, or keep it until it can be; each is answered once."""
        match message.action:
            case "pause" | "continue":
                self.paused = message.action == "pause"
                self._state.output.replies.append(Reply(message.call))
            case "flush":
                self._wishes.append(_Wish(message.call, now + message.timeout_s))
                self.tick(now)

    def tick(self, now: float) -> None:
        """Let time pass: flush when nobody has a request open, refuse whoever has waited long enough."""
        if not self._wishes:
            return
        if not self._state.requests:
            self._state.pool.tree_cache.clear()
            self.num_flushes += 1
            self._state.output.replies += [Reply(wish.call) for wish in self._wishes]
            self._wishes.clear()
            return
        busy = f"The cache is in use: {len(self._state.requests)} requests run or wait. 'timeout' waits for their end."
        late = [wish for wish in self._wishes if wish.until_s <= now]
        self._state.output.replies += [Reply(wish.call, 400, "busy", busy) for wish in late]
        self._wishes = [wish for wish in self._wishes if wish.until_s > now]
