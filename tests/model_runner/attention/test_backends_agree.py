from __future__ import annotations

import pytest
import torch

from ebbtide.model_runner.attention import BACKENDS, choose_backend

from .agreement import CASES, WITH_WINDOW, Step

CPU = torch.device("cpu")


@pytest.mark.parametrize("backend", BACKENDS["cpu"])
@pytest.mark.parametrize("name", CASES)
def test_a_cpu_backend_equals_the_reference_attention(name: str, backend: str) -> None:
    step = Step(CASES[name], device=CPU)
    _, module = choose_backend(backend, CPU, torch.float32)
    torch.testing.assert_close(step.run(module.build(step.pool)).double(), step.truth(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS["cpu"])
@pytest.mark.parametrize("name", WITH_WINDOW)
def test_a_cpu_backend_reads_no_page_before_the_window(name: str, backend: str) -> None:
    step = Step(CASES[name], device=CPU)
    step.forget()
    _, module = choose_backend(backend, CPU, torch.float32)
    torch.testing.assert_close(step.run(module.build(step.pool)).double(), step.truth(), rtol=1e-4, atol=1e-4)
