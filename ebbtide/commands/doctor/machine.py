"""Checks of the hardware: instruction set, memory, GPU."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

from ebbtide.model_runner.kv.cgroup_limits import UNLIMITED, cgroup_room
from ebbtide.model_runner.kv.host_memory import available_memory

from ..table import size_text
from .check import Check

# (instruction set, its flag in /proc/cpuinfo), from the fastest to the slowest.
X86_SETS = (("AMX", "amx_bf16"), ("AVX512-BF16", "avx512_bf16"), ("AVX512", "avx512f"), ("AVX2", "avx2"))
LITTLE_MEMORY = 2 << 30  # bytes
GPU_TIMEOUT_S = 20.0


def check_instruction_set(cpuinfo: Path = Path("/proc/cpuinfo")) -> Check:
    """Check that the compiled kernels have a fast variant for this CPU."""
    machine = platform.machine()
    if machine not in ("x86_64", "AMD64"):
        return Check("instruction set", "ok", machine)
    try:
        flags = {word for line in cpuinfo.read_text().splitlines() if line.startswith("flags") for word in line.split()}
    except OSError as error:
        return Check("instruction set", "warn", f"{cpuinfo} cannot be read: {error.strerror}")
    found = [name for name, flag in X86_SETS if flag in flags]
    if found:
        return Check("instruction set", "ok", f"{found[0]} ({machine})")
    text = "no AVX2: the compiled kernels do not run on this CPU, and torch is several times slower"
    return Check("instruction set", "warn", text)


def check_memory() -> Check:
    """Check that enough memory is available to a server."""
    try:
        available = available_memory()
    except OSError as error:
        return Check("memory", "warn", f"the available memory is unknown: {error.strerror}", "set --max-total-tokens")
    room = cgroup_room()
    limit = "no control group limit" if room >= UNLIMITED else f"{size_text(room)} left in the control group"
    found = f"{size_text(available)} available; {limit}"
    if available < LITTLE_MEMORY:
        remedy = "end other processes, raise the limit of the container, or serve a smaller model"
        return Check("memory", "warn", f"only {found}", remedy)
    return Check("memory", "ok", found)


def check_gpu() -> Check:
    """Check whether PyTorch can use the GPU. A machine without a GPU passes the check."""
    try:
        from ebbtide.model_runner.device import choose_device
    except ImportError as error:
        return Check("GPU", "fail", f"PyTorch cannot be imported: {error}", "pip install --force-reinstall torch")
    usable = choose_device("auto").type == "cuda"
    names = _gpu_names()
    if usable:
        return Check("GPU", "ok", names or "a CUDA device")
    if names:
        text = f"{names}, but PyTorch cannot use it"
        return Check("GPU", "warn", text, "install PyTorch's CUDA build and a driver that it supports: docs/install.md")
    return Check("GPU", "ok", "none; models run on the CPU")


def _gpu_names() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GPU_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ", ".join(done.stdout.split("\n")[:-1])
