from __future__ import annotations

import pytest
import torch

from ebbtide.config import RunnerConfig
from ebbtide.errors import StartupError
from ebbtide.messages import PoolInfo, RunnerInfo
from ebbtide.model_runner.cuda_graphs import GraphChoice
from ebbtide.model_runner.sim.sim import SimRunner
from ebbtide.model_runner.start_report import ADVICE, StartMemory, choices_table

GIB = 1 << 30
INFO = RunnerInfo(
    context_length=100,
    vocab_size=10,
    pools=(PoolInfo(64, 256),),
    num_rows=4,
    eos_token_ids=(),
    pool_bytes=3 * GIB,
    device="cuda",
    dtype="bfloat16",
    attention="flash_attn",
    max_in_flight=2,
)


def test_every_choice_has_its_value_and_its_reason() -> None:
    config = RunnerConfig(attention_backend="flash_attn", mem_fraction_static=0.7)
    lines = choices_table(config, INFO, GraphChoice((1, 2, 4), "up to 4 rows (--max-running-requests)")).splitlines()
    assert [line.split("  ")[1] for line in lines] == [
        "device",
        "dtype",
        "attention",
        "page size",
        "KV pool",
        "decode graphs",
        "steps in flight",
    ]
    assert lines[2].split() == ["attention", "flash_attn", "--attention-backend"]
    assert "256" in lines[3]
    assert "default" in lines[3]
    assert "16384 tokens, 3.00 GiB" in lines[4]
    assert "--mem-fraction-static 0.7" in lines[4]
    assert "up to 4 rows" in lines[5]


@pytest.mark.parametrize("name", ADVICE)
def test_too_little_memory_names_the_parts_and_the_flags(name: str) -> None:
    sizes = iter([0, 5 * GIB, 5 * GIB])
    memory = StartMemory(lambda: next(sizes))
    with memory.part("the weights"):
        pass
    with pytest.raises(StartupError) as caught, memory.part(name):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    assert str(caught.value).startswith(f"The device has too little memory for {name}: the weights took 5.00 GiB. ")
    assert "--" in str(caught.value)


@pytest.mark.parametrize("disabled", [True, False])
def test_steps_overlap_unless_that_is_disabled(disabled: bool) -> None:
    runner = SimRunner.from_config(RunnerConfig(disable_overlap_schedule=disabled))
    assert runner.info.max_in_flight == (1 if disabled else 2)


def test_other_errors_at_the_start_are_raised_unchanged() -> None:
    with pytest.raises(ValueError, match="no memory error"), StartMemory(lambda: 0).part("the weights"):
        raise ValueError("no memory error")
