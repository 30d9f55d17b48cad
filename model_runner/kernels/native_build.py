"""Compiles a C++ file of this folder for the local CPU and loads it.

The module does not depend on the contents of the file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from ebbtide.tokenization.model_files import cache_dir

X86 = platform.machine() in ("x86_64", "AMD64")
VECTORS = ("-march=native", "-mprefer-vector-width=512") if X86 else ("-mcpu=native",)
SPEED = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fopenmp")
FLAGS = ("-std=c++17", *SPEED, "-Wno-psabi", "-shared", "-fPIC")
TIMEOUT_S = 120.0


class BuildError(Exception):
    """The compiler is missing or has failed, as the message says."""


def load_library(source: Path, vectors: tuple[str, ...] = VECTORS) -> ctypes.CDLL:
    """Compile ``source``, or take the compiled library from the user's cache. Raises BuildError if that fails.

    The code is compiled for one type of CPU, so the cache key includes the CPU's features and the headers of the
    folder.

    Args:
        source: a C++ file.
        vectors: compiler flags that choose the instruction set.
    """
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise BuildError("it needs a C++ compiler")
    features = sorted(torch.cpu.get_capabilities().items())
    text = "".join(path.read_text() for path in (source, *sorted(source.parent.glob("*.h"))))
    flags = (*FLAGS, *vectors)
    key = hashlib.sha256(f"{text}{flags}{compiler}{torch.__version__}{features}".encode()).hexdigest()
    library = cache_dir() / "kernels" / f"{source.stem}-{key[:16]}.so"
    try:
        if not library.is_file():
            _compile([compiler, *flags, str(source)], library)
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise BuildError(f"its kernels could not be built: {error}") from error


def _compile(command: list[str], library: Path) -> None:
    """Compile to a temporary file and rename it, because two processes may compile at the same time."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        try:
            done = subprocess.run(
                [*command, "-o", str(made)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"the compiler took more than {TIMEOUT_S:.0f} s") from error
        if done.returncode != 0:
            raise BuildError(f"the compiler failed: {' '.join(done.stderr.split())[:200]}")
        made.replace(library)
