"""Random plays with sessions, and a model without KV memory: token lists and the expected reply to each turn.

A play is determined by its seed. The output of every turn must equal that of its whole conversation in an ample pool.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from msgspec import structs

from ebbtide.messages import SWA_POOL, FinishReq, GenerateReq, PoolInfo, SamplingParams, SessionTurn
from ebbtide.paging import pages_for
from ebbtide.retract_policies import RETRACT_POLICIES
from ebbtide.scheduler.memory.session_aware_cache import SessionAwareCache

from .loads import random_sampling
from .session_world import SessionWorld
from .world import Outcome, Shape, World, text

TIMEOUT_S = 1e6  # longer than any play
AMPLE = 20_000  # pages: enough that nothing is evicted
SLOW = 4000  # steps after which every request of a play must have ended


@dataclass
class ModelTurn:
    """A turn of the model. prompt: the whole conversation. cut: output tokens before a stop string."""

    rid: str
    session: ModelSession | None
    prompt: list[int]
    sampling: SamplingParams
    sent_at: int
    before: int = 0
    cut: int | None = None
    over: bool = False


@dataclass
class ModelSession:
    """A session of the model. newest: the committed turn that a late stop string may still truncate."""

    name: str
    streaming: bool
    tokens: list[int] = field(default_factory=list)
    turn: ModelTurn | None = None
    newest: ModelTurn | None = None
    open: bool = True
    told: str = "session_not_found"


class Play:
    """One random play. window: size of the window of a second pool; 0 for no second pool."""

    def __init__(self, seed: int, window: int = 0) -> None:
        self.rng = rng = random.Random(seed)
        self.shape = Shape(
            num_pages=rng.choice([24, 32, 48, 96, AMPLE]),
            page_size=rng.choice([1, 2, 4, 8]),
            num_rows=rng.choice([1, 2, 4, 8]),
            chunk=rng.choice([4, 16, 64]),
            overlap=rng.choice([1, 2]),
            cache=rng.random() < 0.75,
            policy=rng.choice(["fcfs", "fcfs", "lpm", "priority"]),
            retract_policy=rng.choice(list(RETRACT_POLICIES)),
            retract_interval=rng.choice([0, 0, 3, 11]),
            host_pages=rng.choice([0, 0, 32]),
            max_retractions=rng.choice([-1, 0, 3]) if rng.random() < 0.5 else 3,
            context_length=512,
            sessions=True,
            session_timeout=TIMEOUT_S,
        )
        if self.shape.max_retractions == -1 and self.shape.retract_interval:
            self.shape = replace(self.shape, max_retractions=3)
        if window:
            self.shape = replace(self.shape, second=_window_pool(self.shape, window, seed))
        self.world = SessionWorld(self.shape)
        self.sessions: list[ModelSession] = []
        self.turns: list[ModelTurn] = []
        self.num_operations = 0
        self.slowest = 0

    def run(self, num_operations: int) -> None:
        """Play, end all requests and sessions, and compare with the model."""
        moves = [self.open, self.turn, self.abort, self.stop, self.close, self.expire, self.plain, self.steps]
        weights = [6, 30, 8, 6, 3, 0.5, 10, 36]
        for _ in range(num_operations):
            self.rng.choices(moves, weights)[0]()
            self.num_operations += 1
            self.sync()
        self.world.run()
        self.sync()
        assert all(turn.over for turn in self.turns)
        assert not any(event.aborted and event.pool == SWA_POOL for event in self.world.events)
        self.close_all()
        self.world.scheduler.on_idle()
        self.compare()

    def close_all(self) -> None:
        """Close all sessions. No counter of sessions or turns may be left."""
        for session in self.sessions:
            self.world.close(session.name)
        pools = self.world.scheduler.state.kv_pools
        assert all(pool.accounting().session_held == 0 for pool in pools)
        cache = self.world.pool.tree_cache
        assert isinstance(cache, SessionAwareCache)
        assert cache.num_turns == self.world.scheduler.num_turns == 0
        cache.clear()
        assert all(pool.available_pages == pool.capacity for pool in pools)

    def open(self) -> None:
        """Open a session."""
        session = ModelSession(f"s{len(self.sessions)}", self.rng.random() < 0.8)
        self.sessions.append(session)
        assert self.world.open(session.name, streaming=session.streaming).status == 200

    def turn(self) -> None:
        """Send a turn to any session, open or not, busy or not. It must be accepted or rejected like in the model."""
        if not self.sessions:
            return
        session = self.rng.choice(self.sessions[-8:])
        words = self._words()
        turn = ModelTurn(f"t{len(self.turns)}", session, session.tokens + words, self._sampling(), self.world.steps)
        turn.before = len(session.tokens)
        expected = self._refusal(session, turn)
        self.world.send(GenerateReq((turn.rid,), words, turn.sampling, session=SessionTurn(session.name)))
        self.world.receive()
        self.world.read()
        outcome = self.world.outcomes.get(turn.rid, Outcome())
        assert [abort.code for abort in outcome.aborts] == expected, (turn, session)
        if not expected:
            session.turn, session.newest = turn, None
            self.turns.append(turn)
        else:
            self.turns.append(ModelTurn(turn.rid, None, [], turn.sampling, 0, over=True, cut=0))

    def plain(self) -> None:
        """Send a request without a session, sometimes with a session's own tokens, sometimes a large one."""
        size = self.rng.choice([3, 10, self.world.allocator.num_pages * self.shape.page_size * 2 // 3])
        prompt = self._words() * (size // 8 + 1)
        if self.sessions and self.rng.random() < 0.3:
            prompt = self.rng.choice(self.sessions).tokens + prompt
        turn = ModelTurn(f"t{len(self.turns)}", None, prompt[-400:], self._sampling(), self.world.steps)
        if not self._fits(turn):
            return
        self.turns.append(turn)
        self.world.send(GenerateReq((turn.rid,), turn.prompt, turn.sampling, priority=self.rng.choice([0, 0, 5])))
        self.world.receive()
        self.world.read()

    def abort(self) -> None:
        """Abort a request in any state."""
        alive = [turn for turn in self.turns[-20:] if not turn.over]
        if alive:
            self.world.abort(self.rng.choice(alive).rid)
            self.world.receive()
            self.world.read()

    def stop(self) -> None:
        """Report a stop string in the tokens so far, also of a request that has ended."""
        some = [turn for turn in self.turns[-8:] if turn.cut is None and self._texts(turn)]
        if not some:
            return
        turn = self.rng.choice(some)
        count = self.rng.randint(1, self._texts(turn))
        if turn.over and (turn.session is None or turn.session.newest is not turn):
            return  # aborted, or another turn was accepted since: too late in both
        self.world.send(FinishReq(turn.rid, count))
        self.world.receive()
        self.world.read()
        turn.cut = count
        if turn.over and turn.session is not None:
            turn.session.tokens = turn.prompt + self._output(turn)[:count]

    def close(self) -> None:
        """Close a session. Its open turn continues."""
        if self.sessions:
            session = self.rng.choice(self.sessions)
            assert self.world.close(session.name).status == 200
            if session.open:
                session.open, session.told = False, "session_closed"

    def expire(self) -> None:
        """Advance the clock beyond the session timeout."""
        self.world.skipped_s += 2 * TIMEOUT_S
        self.world.receive()
        for session in self.sessions:
            if not session.open:
                session.told = "session_not_found"
            elif session.turn is None:
                session.open, session.told = False, "session_closed"

    def steps(self) -> None:
        """Run some steps."""
        for _ in range(self.rng.choice([1, 1, 2, 5, 20])):
            self.world.step()

    def sync(self) -> None:
        """Update the model with the turns that have ended."""
        self.world.read()
        for turn in self.turns:
            outcome = self.world.outcomes.get(turn.rid)
            if turn.over or outcome is None or not (outcome.finish or outcome.aborts):
                continue
            turn.over = True
            self.slowest = max(self.slowest, self.world.steps - turn.sent_at)
            assert self.world.steps - turn.sent_at < SLOW
            session = turn.session
            if session is not None:
                session.turn = None
                if outcome.finish in ("stop", "length"):
                    session.tokens = turn.prompt + self._shown(turn, outcome)
                    session.newest = turn

    def compare(self) -> None:
        """Compare all outputs with those in an ample pool, in which no request waits and no page is evicted."""
        second = self.shape.second
        if second is not None:
            second = PoolInfo(20_000, 16, SWA_POOL, second.window)
        ample = World(
            Shape(num_pages=200_000, page_size=16, num_rows=256, chunk=4096, context_length=512, second=second)
        )
        for turn in self.turns:
            if turn.prompt:
                ample.generate(turn.rid, turn.prompt, turn.sampling)
        expected = ample.run()
        for turn in self.turns:
            if not turn.prompt:
                continue
            outcome, said = self.world.outcomes[turn.rid], self._output(turn)
            whole = expected[turn.rid]
            if outcome.finish in ("stop", "length") and turn.cut is None:
                assert (said, outcome.finish) == (whole.tokens, whole.finish), turn.rid
            assert said == whole.tokens[: len(said)], turn.rid
            self.check_reuse(turn, outcome)

    def check_reuse(self, turn: ModelTurn, outcome: Outcome) -> None:
        """A turn counts its whole context, and reuses what its session holds if no KV is ever lost."""
        if outcome.finish in ("stop", "length") and turn.session is not None and outcome.tokens:
            assert outcome.prompt_tokens == len(turn.prompt)
            assert outcome.cached_tokens <= len(turn.prompt)
            if self.undisturbed and turn.session.streaming and turn.session.open and not self._lost_window(turn):
                assert outcome.cached_tokens >= turn.before - self.shape.page_size, turn.rid

    @property
    def undisturbed(self) -> bool:
        """True if no KV is ever lost: none is evicted, and no stop string ends a waiting request."""
        return self.shape.num_pages == AMPLE and not self.shape.retract_interval

    def _lost_window(self, turn: ModelTurn) -> bool:
        """True if a stop string truncated a turn of the session, whose window may already have moved beyond it."""
        return self.shape.second is not None and any(
            other.session is turn.session and other.cut is not None for other in self.turns
        )

    def _output(self, turn: ModelTurn) -> list[int]:
        outcome = self.world.outcomes.get(turn.rid)
        return outcome.tokens if outcome is not None else []

    def _texts(self, turn: ModelTurn) -> int:
        """Number of output tokens with text, in which a stop string can occur. A stop token has no text."""
        outcome = self.world.outcomes.get(turn.rid, Outcome())
        return len(outcome.tokens) - (outcome.finish == "stop")

    def _shown(self, turn: ModelTurn, outcome: Outcome) -> list[int]:
        """The output tokens without a stop token at the end."""
        if turn.cut is not None:
            return self._output(turn)[: turn.cut]
        return outcome.tokens[:-1] if outcome.finish == "stop" else outcome.tokens

    def _refusal(self, session: ModelSession, turn: ModelTurn) -> list[str]:
        if not session.open:
            return [session.told]
        if session.turn is not None:
            return ["session_busy"]
        return [] if self._fits(turn) else ["context_length_exceeded"]

    def _fits(self, turn: ModelTurn) -> bool:
        count, wanted = len(turn.prompt), turn.sampling.max_tokens
        least = pages_for(count + min(wanted, 2) - 1, self.shape.page_size)
        return count + wanted <= self.shape.context_length and least <= self.shape.num_pages

    def _sampling(self) -> SamplingParams:
        sampling = random_sampling(self.rng)
        most = min(sampling.max_tokens, self.rng.choice([1, 4, 12, 60]))
        return structs.replace(sampling, max_tokens=most, min_tokens=min(sampling.min_tokens, most))

    def _words(self) -> list[int]:
        return text("".join(self.rng.choice("ab") for _ in range(self.rng.choice([1, 2, 7, 20]))))


def _window_pool(shape: Shape, window: int, seed: int) -> PoolInfo:
    """A pool of about the size of one window, or an ample one if the first pool is ample."""
    spare = random.Random(seed * 7919 + window).choice([0, 1, 4, 12, 60])
    num_pages = AMPLE if shape.num_pages == AMPLE else pages_for(window - 1, shape.page_size) + 1 + spare
    return PoolInfo(num_pages, shape.page_size, SWA_POOL, window)
