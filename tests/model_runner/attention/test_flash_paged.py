from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.config import RunnerConfig
from ebbtide.errors import StartupError
from ebbtide.model_runner.attention import choose_backend, flash_paged, triton_paged
from ebbtide.model_runner.attention.flash_paged import build, unavailable
from ebbtide.model_runner.kv.kv_pool import KVPool, KVShape

from .agreement import CASES, Step
from .flash_module import flash_module

CPU = torch.device("cpu")
# The Python files of flash-attn without its compiled module; the Makefile installs them.
LAYER = Path(sys.prefix) / "flash-attn-layer"
SUPPORTED = [name for name, case in CASES.items() if not case.sinks]


@pytest.fixture(scope="module")
def flash_attn() -> Iterator[None]:
    """The package flash-attn with its compiled module replaced. Imported only once, because it registers operators."""
    if not (LAYER / "flash_attn").is_dir():
        pytest.skip(f"{LAYER} does not exist; `make lint` installs it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(LAYER), *sys.path])
        patch.setitem(sys.modules, "flash_attn_2_cuda", flash_module())
        from flash_attn import flash_attn_interface

        operation: Any = flash_attn_interface._flash_attn_varlen_forward
        operation.register_kernel("cpu")(operation._init_fn)
        yield


def test_flash_attention_is_not_for_the_cpu() -> None:
    assert unavailable(CPU, torch.bfloat16) == "it needs a CUDA device"


def test_the_python_files_of_flash_attn_alone_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_paged, "find_spec", lambda name: None if name == "flash_attn_2_cuda" else name)
    assert unavailable(torch.device("cuda"), torch.bfloat16) == (
        "it needs the package flash-attn with its compiled module"
    )


@pytest.mark.parametrize(
    ("page_size", "head_dim", "sentence"),
    [(16, 8, "--page-size that is a multiple of 256, not 16"), (256, 20, "heads of size 20"), (256, 264, "size 264")],
)
def test_flash_attention_says_which_sizes_it_needs(page_size: int, head_dim: int, sentence: str) -> None:
    pool = KVPool(KVShape(1, 1, head_dim), 4, page_size, dtype=torch.bfloat16, device=CPU)
    with pytest.raises(StartupError, match=sentence):
        build(pool)


def test_the_page_size_follows_from_the_backend_unless_it_is_given() -> None:
    assert RunnerConfig().tokens_per_page == 16
    assert RunnerConfig(attention_backend="flash_attn").tokens_per_page == 256
    assert RunnerConfig(attention_backend="flash_attn", page_size=512).tokens_per_page == 512


@pytest.mark.parametrize("name", SUPPORTED)
def test_flash_attention_equals_the_reference_attention(name: str, flash_attn: None) -> None:
    step = Step(replace(CASES[name], page_size=256), device=CPU, dtype=torch.bfloat16)
    found = step.run(build(step.pool))
    torch.testing.assert_close(found.double(), step.truth(), rtol=2e-2, atol=2e-2)


def test_lengths_of_a_graph_are_upper_bounds(flash_attn: None) -> None:
    step = Step(replace(CASES["only decodes"], page_size=256), device=CPU, dtype=torch.bfloat16)
    expected = step.run(build(step.pool))
    step.batch = replace(step.batch, starts=[10_000] * 3, rows=[0] * 3, any_rows=True)
    assert torch.equal(step.run(build(step.pool)), expected)


def test_queries_may_be_views_with_gaps(flash_attn: None) -> None:
    step = Step(replace(CASES["page size 16"], page_size=256), device=CPU, dtype=torch.float16)
    expected = step.run(build(step.pool))
    joined = torch.cat([step.q, step.k, step.v], dim=1)
    step.q, step.k, step.v = torch.split(joined, [4, 2, 2], dim=1)
    assert torch.equal(step.run(build(step.pool)), expected)


def test_sinks_are_refused(flash_attn: None) -> None:
    step = Step(replace(CASES["sinks"], page_size=256), device=CPU, dtype=torch.bfloat16)
    with pytest.raises(StartupError, match="does not support attention sinks"):
        step.run(build(step.pool))


@pytest.mark.parametrize(
    ("page_size", "chosen"), [(16, "torch"), (256, "flash_attn"), (384, "torch"), (512, "flash_attn")]
)
def test_auto_chooses_flash_attn_only_for_pages_that_it_supports(
    page_size: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_paged, "find_spec", lambda _: None)
    monkeypatch.setattr(flash_paged, "find_spec", lambda _: object())
    assert choose_backend("auto", torch.device("cuda"), torch.bfloat16, page_size)[0] == chosen
