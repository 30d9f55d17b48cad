"""``ebbtide build-kernels``: compiles the C++ kernels before the first start, for container images."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import StartupError
from ..tokenization.model_files import cache_dir, one_line

NATIVE = "native"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument(
        "--target",
        default=NATIVE,
        metavar="CPU",
        help="native (default): this machine's CPU; x86-64-v3 (AVX2) or x86-64-v4 (AVX512): all CPUs of that level",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder for the libraries (default: the cache); set EBBTIDE_KERNELS to another folder when serving",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compile all kernels and print the path of each library. Raises StartupError if one cannot be compiled."""
    from ebbtide.model_runner.kernels.native_build import LEVELS, VECTORS, X86, BuildError, build_library

    targets = {NATIVE: VECTORS} | ({name: level.vectors for name, level in LEVELS.items()} if X86 else {})
    if arguments.target not in targets:
        raise StartupError(f"--target {arguments.target} is not known; it is one of {', '.join(targets)}.")
    folder = arguments.output or cache_dir() / "kernels"
    for source in kernel_sources():
        try:
            print(build_library(source, folder, targets[arguments.target]), flush=True)
        except BuildError as error:
            raise StartupError(
                f"The kernel {source.name} cannot be built: {error} (g++, or the program in CXX)."
            ) from error
        except OSError as error:
            raise StartupError(f"The folder {folder} cannot be written: {one_line(error)}.") from error
    return 0


def kernel_sources() -> list[Path]:
    """Return the C++ source files of the kernels, each of which becomes one library."""
    from ebbtide.model_runner.kernels import native_build

    return sorted(Path(native_build.__file__).resolve().parent.glob("*.cpp"))
