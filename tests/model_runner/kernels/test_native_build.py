"""Compiled kernels: where they are looked for, and what happens without a compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from ebbtide.commands import build_kernels
from ebbtide.model_runner.kernels.native_build import (
    LEVELS,
    X86,
    BuildError,
    find_compiler,
    load_library,
)
from ebbtide.server import cli

FAST, OLD = LEVELS if X86 else ("", "")
pytestmark = pytest.mark.skipif(find_compiler() is None or not X86, reason="needs a C++ compiler for x86-64")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel that returns 7, an empty cache, and the command ``build-kernels`` for this kernel only."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "seven.cpp").write_text('#include "seven.h"\nextern "C" int seven() { return SEVEN; }\n')
    (folder / "seven.h").write_text("#define SEVEN 7\n")
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build_kernels, "kernel_sources", lambda: [folder / "seven.cpp"])
    return folder / "seven.cpp"


def remove_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")


def test_a_library_is_compiled_once_and_again_when_a_header_changes(source: Path, tmp_path: Path) -> None:
    assert load_library(source).seven() == 7
    (library,) = (tmp_path / "cache" / "kernels").iterdir()
    first = library.stat().st_mtime_ns
    assert load_library(source).seven() == 7
    assert library.stat().st_mtime_ns == first
    (source.parent / "seven.h").write_text("#define SEVEN 8\n")
    assert load_library(source).seven() == 8


def test_libraries_of_the_command_are_used_without_a_compiler(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["build-kernels", "--output", str(tmp_path / "built")]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.parent == tmp_path / "built"
    assert path.is_file()
    remove_compiler(monkeypatch)
    with pytest.raises(BuildError, match=r"^it needs a C\+\+ compiler$"):
        load_library(source)
    monkeypatch.setenv("EBBTIDE_KERNELS", str(tmp_path / "built"))
    assert load_library(source).seven() == 7


def test_the_fastest_level_that_the_cpu_has_is_used_without_a_compiler(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for level in LEVELS:
        assert cli.main(["build-kernels", "--target", level]) == 0
    remove_compiler(monkeypatch)
    everything = dict.fromkeys(LEVELS[FAST].features | LEVELS[OLD].features, True)
    loaded: list[str] = []
    monkeypatch.setattr("ctypes.CDLL", loaded.append)
    for features in (everything, everything | {"avx512_vl": False}):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda features=features: features)
        load_library(source)
    assert len(set(loaded)) == 2
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx": True})
    with pytest.raises(BuildError):
        load_library(source)


def test_the_command_refuses_an_unknown_cpu_and_a_missing_compiler(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["build-kernels", "--target", "z80"]) == 1
    assert capsys.readouterr().err == (
        "ebbtide: --target z80 is not known; it is one of native, x86-64-v4, x86-64-v3.\n"
    )
    (tmp_path / "file").touch()
    assert cli.main(["build-kernels", "--output", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith(f"ebbtide: The folder {tmp_path / 'file'} cannot be written: ")
    remove_compiler(monkeypatch)
    assert cli.main(["build-kernels"]) == 1
    assert capsys.readouterr().err == (
        "ebbtide: The kernel seven.cpp cannot be built: it needs a C++ compiler (g++, or the program in CXX).\n"
    )


def test_all_kernels_of_the_package_are_found() -> None:
    assert {path.name for path in build_kernels.kernel_sources()} >= {"llama_forward.cpp", "draw_tokens.cpp"}


def test_a_failing_compiler_is_one_sentence(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_text("this is no C++")
    with pytest.raises(BuildError, match=r"^the compiler failed: .*seven\.cpp"):
        load_library(source)
    assert cli.main(["build-kernels"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("ebbtide: The kernel seven.cpp cannot be built: the compiler failed: ")
    assert error.count("\n") == 1


def test_a_compiler_is_found_by_the_variable_cxx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++")
    assert find_compiler() == shutil.which("g++")
