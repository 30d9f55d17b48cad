from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.errors import StartupError
from ebbtide.messages import SamplingParams

from .driver import Driver, load_runner

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


def only_config(source: Path, folder: Path, **changes: object) -> Path:
    """A folder that contains only the configuration of a checkpoint."""
    fields = json.loads((source / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_configuration_alone_gives_the_same_model_twice(
    dtype: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = only_config(tiny("qwen3"), tmp_path)
    runs = []
    for _ in range(2):
        runner = load_runner(folder, load_format="dummy", dtype=dtype)
        runs.append(Driver(runner).generate([[5, 6, 7], [300, 8]], GREEDY))
    assert runs[0] == runs[1]
    assert len({token for output in runs[0] for token in output}) > 1


def test_a_configuration_alone_is_refused_without_the_flag(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"model\.safetensors does not exist"):
        load_runner(only_config(tiny("llama"), tmp_path))


def test_dummy_weights_are_for_native_families(tiny: Callable[[str], Path], smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    for path in (tmp_path, smollm2):
        with pytest.raises(StartupError, match="--load-format dummy is not supported for"):
            load_runner(path, load_format="dummy")
