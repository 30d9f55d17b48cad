"""The process of a rank other than 0: receives plans, computes its part and discards the results."""

from __future__ import annotations

from typing import Any

import zmq
from setproctitle import setproctitle

from ebbtide.config import RankSection
from ebbtide.plan import Runner, StepPlan
from ebbtide.runtime.channel import Receiver
from ebbtide.runtime.child_main import Handshake, run_child
from ebbtide.runtime.garbage import without_collections

from ..runner import ModelRunner
from .group import RankPlace

IDLE_WAIT_S = 60.0


class Loop:
    """Computes plans in the order of arrival, with as many in flight as the runner allows."""

    def __init__(self, runner: Runner, inbox: Receiver[StepPlan]) -> None:
        self._runner = runner
        self._inbox = inbox
        self._in_flight = 0

    def turn(self) -> None:
        """Wait for plans and submit all that have arrived."""
        for plan in self._inbox.drain(IDLE_WAIT_S):
            if self._in_flight == self._runner.info.max_in_flight:
                self._runner.collect()
                self._in_flight -= 1
            self._runner.submit(plan)
            self._in_flight += 1


def main(section: RankSection, handshake: Handshake) -> None:
    """Load the rank's part of the model, then compute plans until the process is ended."""
    setproctitle(f"ebbtide::rank-{section.rank}")
    context: zmq.Context[Any] = zmq.Context()
    inbox: Receiver[StepPlan] = Receiver(context, section.ranks.addresses[section.rank - 1], StepPlan)
    ranks = section.ranks
    place = RankPlace(section.rank, ranks.size, ranks.rendezvous, ranks.timeout_s)
    with without_collections():
        runner = ModelRunner.load(section.files, section.runner, handshake.progress, place)
    loop = Loop(runner, inbox)
    handshake.ready()
    while True:
        loop.turn()


if __name__ == "__main__":
    run_child(RankSection, "rank", main)
