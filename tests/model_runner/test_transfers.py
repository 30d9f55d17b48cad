"""Copies between host and device: every step makes exactly one to the device."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig

from ebbtide.messages import PoolInfo, SamplingParams
from ebbtide.model_runner import runner as runner_module
from ebbtide.model_runner.attention.torch_reference import build
from ebbtide.model_runner.kv.kv_pool import KVPool
from ebbtide.model_runner.kv.page_table import PageTable
from ebbtide.model_runner.layers.rotary import Rotary
from ebbtide.model_runner.models.llama import LlamaModel
from ebbtide.model_runner.models.llama_config import LlamaConfig
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.model_runner.sampling import prompt_logprobs, sampler
from ebbtide.model_runner.transfers import StaticInputs, host_tensor, upload
from ebbtide.plan import PlanItem, PromptLogprobSpec, RowInit, StepPlan

from .driver import load_runner

META = torch.device("meta")  # stands for an accelerator: its tensors are not on the host


class DeviceCopies(TorchFunctionMode):
    """Records the calls that copy values from the host to the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = any(leaf.is_meta for leaf in [*tensors, *tree_leaves(out)] if isinstance(leaf, Tensor))
        from_lists = func in (torch.tensor, torch.as_tensor) or (
            func in (Tensor.__getitem__, Tensor.__setitem__) and any(isinstance(arg, list) for arg in args)
        )
        if on_device and (from_lists or any(leaf.dim() > 0 and not leaf.is_meta for leaf in tensors)):
            self.calls.append(func.__name__)
        return out


class NoCopy:
    """Replaces ``DeviceToHostCopy``, which the meta device does not support."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@pytest.fixture
def meta_runner(tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> ModelRunner:
    """A runner with everything on the meta device: its results have shapes and no values."""
    for module in (runner_module, sampler, prompt_logprobs):
        monkeypatch.setattr(module, "DeviceToHostCopy", NoCopy)
    config = AutoConfig.from_pretrained(tiny("llama"))
    shape = LlamaConfig.read(config)
    rotary = Rotary.from_config(config, shape.head_dim, dtype=torch.float32, device=META)
    model = LlamaModel(shape, rotary, dtype=torch.float32, device=META)
    pool = KVPool(model.kv_shape, 64, 16, dtype=torch.float32, device=META)
    info = msgspec.structs.replace(load_runner(tiny("llama"), max_total_tokens=1024).info, max_in_flight=100)
    table = PageTable(info.num_rows, info.context_length, PoolInfo(64, 16), device=META)
    return ModelRunner(model, build(pool), [table], info)


def first_item(row: int, prompt: list[int], pages: list[int], **params: Any) -> PlanItem:
    return PlanItem(row, 0, prompt, pages, 0, True, RowInit(SamplingParams(max_tokens=9, **params), 5, prompt))


ALL = {"logprobs": 2, "top_k": 5, "top_p": 0.8, "min_p": 0.1, "logit_bias": {3: 1.0}, "min_tokens": 4}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.5}
MASK = bytes([255] * 64)
PLANS = {
    "prefill": [first_item(0, [1, 2, 3, 4, 5, 6], [3])],
    "prefill with all parameters": [first_item(0, [1, 2, 3, 4, 5, 6], [3], **ALL, **PENALTIES)],
    "decode": [PlanItem(5, 6, None), PlanItem(6, 6, None)],
    "decode over a page": [PlanItem(5, 6, [7] * 10), PlanItem(6, 6, [7] * 11, [4], 1)],
    "masks": [PlanItem(5, 6, None, mask=MASK), PlanItem(6, 6, [7], mask=bytes(64))],
    "prompt log-probabilities": [
        PlanItem(5, 6, None),
        PlanItem(6, 6, [7, 8], num_samples=0, prompt_logprobs=PromptLogprobSpec(0, [8], 3)),
    ],
    "everything": [
        PlanItem(5, 6, None, mask=MASK),
        PlanItem(6, 6, [7, 8, 9], prompt_logprobs=PromptLogprobSpec(0, [8], 3)),
        first_item(0, [1, 2, 3, 4, 5, 6], [3], **ALL, **PENALTIES),
    ],
}


@pytest.mark.parametrize("items", PLANS.values(), ids=PLANS)
def test_a_step_makes_one_copy_to_the_device(items: list[PlanItem], meta_runner: ModelRunner) -> None:
    prompt = [1, 2, 3, 4, 5, 6]
    before = [first_item(5, prompt, [1]), first_item(6, prompt, [2], temperature=0.5, **PENALTIES, **ALL)]
    meta_runner.submit(StepPlan(0, before))
    with DeviceCopies() as copies:
        meta_runner.submit(StepPlan(1, items))
    assert copies.calls == ["to"]


def test_the_counter_sees_every_kind_of_copy() -> None:
    with DeviceCopies() as copies:
        there = torch.zeros(3, device=META)
        torch.tensor([1, 2], device=META)
        torch.ones(2).to(META)
        there.copy_(torch.ones(3))
        there[torch.tensor([0, 1])] = 1.0
        there[[0, 1]]
        there + there[:1] * 2 + torch.arange(3, device=META)
    assert copies.calls == ["tensor", "to", "copy_", "__setitem__", "__getitem__"]


SOURCES = Path(runner_module.__file__).resolve().parent
ONCE = {"models/transformers_probe.py", "tensor_parallel/group.py"}  # run only at the start
BLOCKING = {"torch.tensor", "torch.as_tensor", "torch.Tensor"}  # with ``device``, they wait for a copy


def blocking_copies(source: str) -> list[int]:
    """The lines with a call that creates a tensor on a device from values on the host."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if ast.unparse(call.func) in BLOCKING and any(keyword.arg == "device" for keyword in call.keywords)
    ]


def test_no_file_creates_a_device_tensor_from_a_list() -> None:
    for path in SOURCES.rglob("*.py"):
        name = path.relative_to(SOURCES).as_posix()
        assert name in ONCE or blocking_copies(path.read_text()) == [], name


def test_the_search_finds_a_device_tensor_from_a_list() -> None:
    assert blocking_copies("x = torch.zeros(2, device=d)\ny = f(torch.tensor([1, 2], device=d))") == [2]


def test_static_inputs_keep_their_addresses_and_take_new_values() -> None:
    cpu = torch.device("cpu")
    static = StaticInputs(Part(1, host_tensor([1, 2, 3], np.int32)), cpu)
    values = static.values.values
    assert values is not None
    assert values.tolist() == [1, 2, 3]
    address = values.data_ptr()
    new = host_tensor([4, 5, 6], np.int32)
    static.load(Part(1, new))
    new.zero_()
    assert (values.tolist(), values.data_ptr()) == ([4, 5, 6], address)


@dataclass(frozen=True)
class Part:
    number: int
    values: Tensor | None


@dataclass(frozen=True)
class Whole:
    parts: list[Part]
    flags: Tensor
    lens: list[int]
    part: Part


def test_uploaded_tensors_keep_their_values_types_and_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy stays on the CPU here, because the meta device has no values."""
    whole = Whole(
        [Part(1, host_tensor([1, -2, 3], np.int32)), Part(2, None), Part(3, host_tensor([], np.int64))],
        torch.tensor([[True, False, True], [False, True, True]]),
        [7, 8],
        Part(4, host_tensor([0.25, -1e300], np.float64)),
    )
    monkeypatch.setattr(Tensor, "to", lambda tensor, device, non_blocking: tensor.clone())
    found = upload(whole, META)
    monkeypatch.undo()
    pairs = [(found.flags, whole.flags), (found.part.values, whole.part.values)]
    pairs += [(mine.values, its.values) for mine, its in zip(found.parts, whole.parts, strict=True)]
    for mine, its in pairs:
        assert (mine is None) is (its is None)
        if mine is not None and its is not None:
            assert mine.dtype == its.dtype
            assert mine.data_ptr() != its.data_ptr() or not len(its)
            assert torch.equal(mine, its)
    assert (found.lens, [part.number for part in found.parts]) == ([7, 8], [1, 2, 3])


def test_on_the_cpu_nothing_is_copied() -> None:
    part = Part(1, host_tensor([1, 2], np.int64))
    assert upload(part, torch.device("cpu")) is part
