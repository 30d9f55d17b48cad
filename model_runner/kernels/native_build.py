"""Compiles a C++ file for the local CPU or for an x86-64 microarchitecture level, and loads it.

The module does not depend on the contents of the file.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from ebbtide.tokenization.model_files import cache_dir

log = logging.getLogger(__name__)

X86 = platform.machine() in ("x86_64", "AMD64")
VECTORS = ("-march=native", "-mprefer-vector-width=512") if X86 else ("-mcpu=native",)
SPEED = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fopenmp")
FLAGS = ("-std=c++17", *SPEED, "-Wno-psabi", "-shared", "-fPIC")
TIMEOUT_S = 600.0  # wall time: a compilation takes 20 s of CPU time, and much longer on a busy machine
FOLDER_VARIABLE = "EBBTIDE_KERNELS"


class BuildError(Exception):
    """The compiler is missing or has failed. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class Level:
    """An x86-64 microarchitecture level (v3, v4), for libraries that run on many machines.

    Attributes:
        vectors: compiler flags that select the level.
        features: CPU features that the level requires, under torch's names.
    """

    vectors: tuple[str, ...]
    features: frozenset[str]


AVX2 = frozenset({"avx2", "bmi", "bmi2", "f16c", "fma3", "lzcnt"})
AVX512 = frozenset({"avx512_f", "avx512_bw", "avx512_cd", "avx512_dq", "avx512_vl"})
# The levels, the fastest first.
LEVELS = {
    "x86-64-v4": Level(("-march=x86-64-v4", "-mprefer-vector-width=512"), AVX2 | AVX512),
    "x86-64-v3": Level(("-march=x86-64-v3",), AVX2),
}


def load_library(source: Path, vectors: tuple[str, ...] = VECTORS) -> ctypes.CDLL:
    """Return the library of ``source``, and compile it first if it does not exist. Raises BuildError if this fails.

    A library for the local CPU is preferred. Without a compiler, a library that ``ebbtide build-kernels`` compiled for
    an x86-64 level is used.

    Args:
        source: a C++ file.
        vectors: compiler flags that select the instruction set.
    """
    name = library_name(source, vectors)
    path = next((folder / name for folder in _folders() if (folder / name).is_file()), None)
    try:
        if path is None and find_compiler() is None:
            path = _portable(source)
        if path is None:
            path = build_library(source, cache_dir() / "kernels", vectors)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"its kernels could not be built: {error}") from error


def build_library(source: Path, folder: Path, vectors: tuple[str, ...] = VECTORS) -> Path:
    """Compile ``source`` to a library in ``folder`` and return its path.

    Raises BuildError if the compilation fails, OSError if ``folder`` is not writable.
    """
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("it needs a C++ compiler")
    log.info("compiling %s for this machine, once", source.name)
    path = folder / library_name(source, vectors)
    started = time.monotonic()
    _compile([compiler, *FLAGS, *vectors, str(source)], path)
    log.info("compiled %s in %.0f s", path, time.monotonic() - started)
    return path


def library_name(source: Path, vectors: tuple[str, ...] = VECTORS) -> str:
    """Return the library's file name, which depends on the source, the headers in its folder, the flags and the CPU."""
    features = [] if vectors in _level_flags() else sorted(torch.cpu.get_capabilities().items())
    text = "".join(path.read_text() for path in (source, *sorted(source.parent.glob("*.h"))))
    key = hashlib.sha256(f"{text}{(*FLAGS, *vectors)}{torch.__version__}{features}".encode()).hexdigest()
    return f"{source.stem}-{key[:16]}.so"


def find_compiler() -> str | None:
    """Return the path of the C++ compiler ($CXX, else g++); None if it is not installed."""
    return shutil.which(os.environ.get("CXX", "g++"))


def _level_flags() -> list[tuple[str, ...]]:
    return [level.vectors for level in LEVELS.values()]


def _folders() -> Iterator[Path]:
    yield cache_dir() / "kernels"
    if os.environ.get(FOLDER_VARIABLE):
        yield Path(os.environ[FOLDER_VARIABLE])


def _portable(source: Path) -> Path | None:
    """Return the path of the fastest library for an x86-64 level that this CPU supports; None if none exists."""
    present = {name for name, value in torch.cpu.get_capabilities().items() if value}
    for level, needs in LEVELS.items():
        for folder in _folders() if needs.features <= present else ():
            path = folder / library_name(source, needs.vectors)
            if path.is_file():
                log.info("%s is compiled for %s, because there is no C++ compiler", source.stem, level)
                return path
    return None


def _compile(command: list[str], library: Path) -> None:
    """Compile to a temporary file and rename it to ``library``, because two processes may compile at the same time."""
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
