"""Settings that are refused before the model is loaded."""

from __future__ import annotations

import pytest

from ebbtide.config import RunnerConfig, ServeConfig
from ebbtide.errors import StartupError
from ebbtide.server.daemon.settings import check_model_names, check_settings


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_model_name_is_refused_at_start(name: str) -> None:
    with pytest.raises(StartupError, match="--served-model-name"):
        check_model_names(["tide", name])


def test_other_model_names_are_accepted() -> None:
    check_model_names([])
    check_model_names(["tide", "org/a model"])


def test_the_simulated_model_has_one_rank() -> None:
    check_settings(ServeConfig(model="sim", runner=RunnerConfig(tp=1)))
    with pytest.raises(StartupError, match="--tp must be 1 for sim"):
        check_settings(ServeConfig(model="sim", runner=RunnerConfig(tp=2)))
