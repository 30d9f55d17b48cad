"""The runner of rank 0, which sends every plan to the other ranks."""

from __future__ import annotations

from collections.abc import Sequence

from ebbtide.config import Ranks, RunnerConfig
from ebbtide.messages import RunnerInfo
from ebbtide.plan import Runner, StepPlan, StepResult
from ebbtide.progress import Progress
from ebbtide.runtime.channel import Sender
from ebbtide.tokenization.model_files import ModelFiles

from ..runner import ModelRunner
from .group import RankError, RankPlace


class ParallelRunner:
    """Submits each plan to the other ranks and to the runner of this process. The results are those of this process.

    Sampling is seeded, and all ranks have the same logits: they draw the same tokens without exchanging them.
    """

    def __init__(self, own: Runner, others: Sequence[Sender[StepPlan]]) -> None:
        self._own = own
        self._others = others

    @property
    def info(self) -> RunnerInfo:
        """See ``Runner``."""
        return self._own.info

    def submit(self, plan: StepPlan) -> None:
        """See ``Runner``. Raises RankError if a rank does not take plans or the step cannot be completed."""
        for rank, sender in enumerate(self._others, 1):
            if not sender.send(plan):
                raise RankError(f"rank {rank} has not taken a plan for a long time: its queue is full")
        self._own.submit(plan)

    def collect(self) -> StepResult:
        """See ``Runner``."""
        return self._own.collect()


def load_rank_0(
    files: ModelFiles,
    config: RunnerConfig,
    progress: Progress,
    ranks: Ranks,
    others: Sequence[Sender[StepPlan]],
) -> ParallelRunner:
    """Load this rank's part of the model, together with the other ranks. See ``build_runner``."""
    own = ModelRunner.load(files, config, progress, RankPlace(0, ranks.size, ranks.rendezvous, ranks.timeout_s))
    return ParallelRunner(own, others)
