"""Chooses the device and the element type from the flags and the hardware."""

from __future__ import annotations

import torch

from ebbtide.errors import StartupError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str, rank: int = 0) -> torch.device:
    """Return the device ``name``; "auto" selects CUDA if available. Raises StartupError if there is no CUDA device.

    rank: number of the tensor-parallel rank, which is also the index of its CUDA device.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    has_cuda = accelerator is not None and accelerator.type == "cuda"
    if name == "cuda" and not has_cuda:
        raise StartupError("--device cuda needs a CUDA device and a PyTorch built for it; there is none here.")
    if name == "auto":
        name = "cuda" if has_cuda else "cpu"
    if name == "cpu" or rank == 0:
        return torch.device(name)
    if rank >= torch.accelerator.device_count():
        raise StartupError(f"--tp needs a CUDA device for each rank: there is none for rank {rank}.")
    torch.accelerator.set_device_index(rank)
    return torch.device(name, rank)


def choose_dtype(name: str, device: torch.device, stored: torch.dtype | None, *, has_kernels: bool) -> torch.dtype:
    """Return the element type ``name``; "auto" selects the stored type on CUDA and the fastest type on the CPU.

    has_kernels: True if there is compiled bfloat16 code for the model, which is faster than float32 on every CPU.
    """
    if name != "auto":
        return DTYPES[name]
    if device.type != "cpu":
        return torch.bfloat16 if stored is None else stored
    return torch.bfloat16 if has_kernels or _cpu_has_bfloat16() else torch.float32


def _cpu_has_bfloat16() -> bool:
    features = torch.cpu.get_capabilities()
    return bool(features.get("avx512_bf16") or features.get("amx_bf16") or features.get("bf16"))
