"""The memory of the KV pool on the CPU is allocated when it is written, and other processes count it as reserved until
then.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import psutil
import pytest
import torch

from ebbtide.model_runner.kv import host_memory, memory
from ebbtide.model_runner.kv.lazy_memory import lazy_zeros, promised_bytes

MIB = 1 << 20
CPU = torch.device("cpu")


def hold_a_pool(commands: Connection) -> None:
    """A process with a pool of 96 MiB. It writes the first third after one line of input, and ends after the next."""
    pool = lazy_zeros((96 * MIB // 4,), torch.float32)
    commands.send("reserved")
    commands.recv()
    pool[: 32 * MIB // 4] = 1
    commands.send("written")
    commands.recv()


def test_a_pool_is_counted_by_others_until_it_is_written() -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=hold_a_pool, args=(theirs,))
    process.start()
    pid = str(process.pid)  # other tests have pools too
    assert ours.recv() == "reserved"
    assert promised_bytes(pid) == 96 * MIB
    assert promised_bytes() >= 96 * MIB
    ours.send("write")
    assert ours.recv() == "written"
    assert promised_bytes(pid) == 64 * MIB
    ours.send("end")
    process.join()
    assert promised_bytes(pid) == 0


def test_memory_is_taken_when_it_is_written() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    pool = lazy_zeros((256, MIB), torch.uint8)
    assert process.memory_info().rss - before < 32 * MIB
    pool[:128] = 1
    assert 96 * MIB < process.memory_info().rss - before < 160 * MIB


def test_free_memory_excludes_what_pools_have_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "cgroup_room", lambda: 200 * MIB)
    monkeypatch.setattr(memory, "promised_bytes", lambda: 50 * MIB)
    assert memory.free_memory(CPU) == 150 * MIB
    monkeypatch.setattr(memory, "promised_bytes", lambda: 300 * MIB)
    assert memory.free_memory(CPU) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pool_starts_with_zeros_and_keeps_what_is_written(dtype: torch.dtype) -> None:
    pool = lazy_zeros((3, 2, 1000, 5), dtype)
    assert pool.shape == (3, 2, 1000, 5)
    assert pool.dtype == dtype
    assert not pool.any()
    pool[1, 1, 7] = 2
    assert float(pool.float().sum()) == 10
    assert lazy_zeros((0, 4), dtype).shape == (0, 4)
