"""The model runner, which computes step plans and does not know about requests. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Callable

from ebbtide.config import RunnerConfig
from ebbtide.errors import StartupError
from ebbtide.plan import Runner
from ebbtide.tokenization.model_files import ModelFiles, one_line


def build_runner(files: ModelFiles, config: RunnerConfig, progress: Callable[[str], None]) -> Runner:
    """Load a model, choose the size of the KV pool, and return a runner that is ready for the first plan.

    progress: called with one line at each stage of loading.
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
        return ModelRunner.load(files, config, progress)
    except StartupError:
        raise
    except Exception as error:  # the libraries that read the files do not document their exceptions for invalid values
        raise StartupError(f"The model {files.name} cannot be loaded: {one_line(error)}.") from error
