"""Checks of the software: versions, compiler and compiled kernels."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ebbtide import __version__
from ebbtide.tokenization.model_files import cache_dir

from .check import Check

PACKAGES = ("torch", "transformers", "huggingface_hub")
COMPILER_TIMEOUT_S = 20.0
WITHOUT_COMPILER = "without a C++ compiler, models run through torch on the CPU, several times slower"


def check_versions() -> Check:
    """Check that the large dependencies are installed, and report their versions."""
    found, missing = [f"ebbtide {__version__}", f"Python {platform.python_version()}"], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check("versions", "fail", f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Check("versions", "ok", ", ".join(found))


def check_compiler() -> Check:
    """Check that the C++ compiler for the CPU kernels exists and runs."""
    name = os.environ.get("CXX", "g++")
    compiler = shutil.which(name)
    remedy = "apt-get install g++, or set CXX to a C++17 compiler"
    if compiler is None:
        return Check("compiler", "warn", f"{name} is not installed: {WITHOUT_COMPILER}", remedy)
    try:
        done = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Check("compiler", "warn", f"{compiler} does not run ({error}): {WITHOUT_COMPILER}", remedy)
    return Check("compiler", "ok", (done.stdout.splitlines() or [compiler])[0])


def check_kernels() -> Check:
    """Report whether compiled kernels are in the cache. The check always passes."""
    folder: Path = cache_dir() / "kernels"
    libraries = list(folder.glob("*.so"))
    if libraries:
        return Check("kernels", "ok", f"{len(libraries)} compiled libraries in {folder}")
    return Check("kernels", "ok", "not compiled yet; the first start on the CPU compiles them")
