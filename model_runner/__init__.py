"""The model runner: tensors, and nothing about requests. Importing this package imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from ebbtide.config import RunnerConfig
from ebbtide.model_files import ModelFiles
from ebbtide.plan import Runner


def build_runner(files: ModelFiles, config: RunnerConfig, progress: Callable[[str], None]) -> Runner:
    """Load a model, measure the memory and be ready for the first plan.

    ``progress`` is called with a short line at each stage of loading. Raises StartupError with one sentence.
    """
    if files.simulated:
        from .sim import SimRunner

        return SimRunner.from_config(config)
    from .runner import ModelRunner

    return ModelRunner.load(files, config, progress)
