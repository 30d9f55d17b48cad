from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from ebbtide.commands.doctor.check import Check
from ebbtide.commands.doctor.command import report
from ebbtide.commands.doctor.machine import check_instruction_set, check_memory
from ebbtide.commands.doctor.places import check_folders, check_port
from ebbtide.commands.doctor.software import check_compiler, check_kernels, check_versions
from ebbtide.runtime.daemon_record import DaemonRecord, write_record
from ebbtide.runtime.socket_directory import socket_directory


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(short_tmp))


def test_each_check_is_a_line_and_a_failure_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check("port", "ok", "8000 is free"), Check("memory", "warn", "only 1 GB", "end other processes")]
    assert report(iter(checks)) == 0
    first, second, remedy = capsys.readouterr().out.splitlines()
    assert first.split() == ["ok", "port", "8000", "is", "free"]
    assert second.split() == ["warn", "memory", "only", "1", "GB"]
    assert remedy.split() == ["→", "end", "other", "processes"]
    assert report(iter([*checks, Check("cache", "fail", "cannot be written")])) == 1


def test_versions_are_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_versions().status == "ok"
    monkeypatch.setattr("ebbtide.commands.doctor.software.PACKAGES", ("no-such-package",))
    assert check_versions() == Check(
        "versions", "fail", "not installed: no-such-package", "pip install no-such-package"
    )


@pytest.mark.parametrize(("compiler", "found"), [("no-such-compiler", "is not installed"), ("false", "does not run")])
def test_a_missing_or_broken_compiler_is_a_warning(compiler: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler)
    check = check_compiler()
    assert check.status == "warn"
    assert found in check.found
    assert "apt-get install g++" in check.remedy


def test_kernels_are_counted(tmp_path: Path) -> None:
    assert "not compiled yet" in check_kernels().found
    (tmp_path / "cache" / "kernels").mkdir(parents=True)
    (tmp_path / "cache" / "kernels" / "a.so").touch()
    assert check_kernels().found.startswith("1 compiled")


@pytest.mark.parametrize(
    ("flags", "status", "found"),
    [("avx2 avx512f amx_bf16", "ok", "AMX"), ("avx2", "ok", "AVX2"), ("sse", "warn", "no AVX2")],
)
def test_the_fastest_instruction_set_is_named(
    flags: str, status: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    (tmp_path / "cpuinfo").write_text(f"model name : x\nflags\t: fpu {flags}\n")
    check = check_instruction_set(tmp_path / "cpuinfo")
    assert (check.status, check.found.split(" (")[0].split(":")[0]) == (status, found)


@pytest.mark.parametrize(("available", "status"), [(1 << 30, "warn"), (8 << 30, "ok")])
def test_little_memory_is_a_warning(available: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.commands.doctor.machine.available_memory", lambda: available)
    assert check_memory().status == status


def test_a_port_in_use_is_a_warning_unless_it_is_that_of_an_own_server() -> None:
    with socket.socket() as other, socket_directory() as directory:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert check_port(port).status == "warn"
        write_record(directory, DaemonRecord(5, f"http://127.0.0.1:{port}", "sim", ("sim",), "", None, started=1.0))
        assert check_port(port) == Check("port", "ok", f"{port} is used by your server 5, which serves sim")


def test_folders_that_cannot_be_written_or_are_full_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**10))
    assert [check.status for check in check_folders()] == ["ok", "ok", "ok"]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert [check.status for check in check_folders()] == ["warn", "warn", "ok"]
    monkeypatch.setenv("EBBTIDE_CACHE", "/proc/none")
    cache, *_ = check_folders()
    assert (cache.status, cache.remedy) == ("fail", "set EBBTIDE_CACHE to a folder that you can write")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 30)))
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))
    (tmp_path / ("long" * 30)).mkdir()
    assert [check.remedy for check in check_folders()][-1] == "export TMPDIR=/tmp"
