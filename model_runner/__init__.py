"""The model runner, which computes step plans and does not know about requests. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ebbtide.config import Ranks, RunnerConfig
from ebbtide.errors import StartupError
from ebbtide.plan import Runner, StepPlan
from ebbtide.progress import Progress
from ebbtide.tokenization.model_files import ModelFiles, one_line

if TYPE_CHECKING:
    from ebbtide.runtime.channel import Sender


@dataclass(frozen=True, slots=True)
class RankSenders:
    """The other tensor-parallel ranks, as rank 0 sees them. senders: channels to the ranks 1, 2, …"""

    ranks: Ranks
    senders: Sequence[Sender[StepPlan]]


def build_runner(
    files: ModelFiles, config: RunnerConfig, progress: Progress, others: RankSenders | None = None
) -> Runner:
    """Load a model, choose the size of the KV pool, and return a runner that is ready for the first plan.

    Args:
        progress: called at each stage of loading.
        others: the other tensor-parallel ranks; None if there are none.

    Raises StartupError if the model cannot be loaded.
    """
    if config.max_total_tokens is not None and config.max_total_tokens < config.tokens_per_page:
        raise StartupError(
            f"--max-total-tokens {config.max_total_tokens} is less than one page of {config.tokens_per_page} tokens "
            "(--page-size)."
        )
    if files.simulated:
        from .sim.sim import SimRunner

        return SimRunner.from_config(config)
    from .runner import ModelRunner

    try:
        if others is not None:
            from .tensor_parallel.runner import load_rank_0

            return load_rank_0(files, config, progress, others.ranks, others.senders)
        return ModelRunner.load(files, config, progress)
    except StartupError:
        raise
    except Exception as error:  # the libraries that read the files do not document their exceptions for invalid values
        raise StartupError(f"The model {files.name} cannot be loaded: {one_line(error)}.") from error
