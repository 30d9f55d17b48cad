"""The Python binding of draw_tokens.cpp."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path

from .native_build import BuildError, load_library

log = logging.getLogger(__name__)

SOURCE = Path(__file__).resolve().with_suffix(".cpp")


@cache
def load_draw_tokens() -> Callable[..., None] | None:
    """Return the compiled function ``draw_tokens``; None, after logging the reason, if it cannot be compiled."""
    try:
        function = load_library(SOURCE)["draw_tokens"]
    except BuildError as error:
        log.info("tokens are drawn by torch: %s", error)
        return None
    function.restype = None
    sizes, pointers = [ctypes.c_int64] * 2, [ctypes.c_void_p] * 5
    function.argtypes = [ctypes.c_void_p, *sizes, *pointers, ctypes.c_int64, ctypes.c_void_p]
    return function
