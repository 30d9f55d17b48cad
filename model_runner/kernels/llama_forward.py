"""The Python binding of llama_forward.cpp: its structures and functions.

The binding only passes pointers and does not depend on models.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from .native_build import VECTORS, X86, BuildError, load_library

SOURCE = Path(__file__).resolve().with_suffix(".cpp")
WITHOUT_TILES = (*VECTORS, "-mno-amx-bf16", "-mno-amx-tile", "-mno-amx-int8") if X86 else VECTORS


class LinearWeights(ctypes.Structure):
    """Has the same fields as ``Linear`` in packed_linear.h."""

    _fields_ = (
        ("blocks", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
    )


class LayerWeights(ctypes.Structure):
    """Has the same fields as ``LayerWeights`` in llama_forward.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("input_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, LinearWeights) for name in ("qkv", "out", "gate_up", "down")),
        ("window", ctypes.c_int64),
    )


class ModelWeights(ctypes.Structure):
    """Has the same fields as ``ModelWeights`` in llama_forward.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim")),
        ("num_threads", ctypes.c_int64),
        ("norm_eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("embedding", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("layers", ctypes.POINTER(LayerWeights)),
        ("head", LinearWeights),
    )


class Pool(ctypes.Structure):
    """Has the same fields as ``Pool`` in llama_forward.cpp."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("layer_stride", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("page_table", ctypes.c_void_p),
        ("table_width", ctypes.c_int64),
    )


class Batch(ctypes.Structure):
    """Has the same fields as ``Batch`` in llama_forward.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_tokens", "num_items", "num_wanted")),
        *((name, ctypes.c_void_p) for name in ("token_ids", "positions", "wanted", "item_rows", "cu_query_lens")),
        *((name, ctypes.c_int64) for name in ("page_size", "is_int8")),
        *((name, ctypes.c_void_p) for name in ("cos", "sin")),
        ("pools", ctypes.POINTER(Pool)),
        ("places", ctypes.c_void_p),
    )


@cache
def load_kernels(vectors: tuple[str, ...] = VECTORS) -> ctypes.CDLL:
    """Return the library, compiled for the instruction set that the compiler flags ``vectors`` select.

    If the operating system does not allow the process to use AMX tiles, the library is compiled without them.
    Raises BuildError if it cannot be built.
    """
    library = load_library(SOURCE, vectors)
    if library.prepare() != 0:
        if vectors == WITHOUT_TILES:
            raise BuildError("the operating system refuses AMX tiles")
        return load_kernels(WITHOUT_TILES)
    library.create.restype = ctypes.c_void_p
    library.create.argtypes = [ctypes.POINTER(ModelWeights)]
    library.destroy.restype = None
    library.destroy.argtypes = [ctypes.c_void_p]
    library.use_threads.restype = None
    library.use_threads.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.forward.restype = None
    library.forward.argtypes = [ctypes.c_void_p, ctypes.POINTER(Batch), ctypes.c_void_p]
    library.logits.restype = None
    library.logits.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    return library
