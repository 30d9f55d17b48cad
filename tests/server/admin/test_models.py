"""Which names a model may have."""

from __future__ import annotations

import pytest

from ebbtide.errors import StartupError
from ebbtide.server.admin.models import check_model_name


@pytest.mark.parametrize("name", ["", " "])
def test_a_name_that_no_request_could_mean_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(StartupError, match="--served-model-name"):
        check_model_name(name)


def test_any_other_name_or_none_will_do() -> None:
    for name in (None, "tide", "org/a model"):
        check_model_name(name)
