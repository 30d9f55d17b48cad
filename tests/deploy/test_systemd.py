"""The systemd unit: accepted by systemd, and in agreement with the daemon's flags, exit codes and timeouts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ebbtide.config import ServerConfig
from ebbtide.server.daemon.engine import GRACE_S

from .flags import parsed

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
MAX_EXPOSURE = 1.5  # of 10; systemd calls up to 2 "OK" and up to 1 "SAFE"


def settings(name: str) -> dict[str, list[str]]:
    """The assignments of a unit file, by name."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / name).read_text().splitlines():
        if "=" in line and not line.startswith(("#", "[")):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def test_the_unit_gives_the_daemon_time_to_drain() -> None:
    unit = settings("ebbtide.service")
    assert unit["KillMode"] == ["mixed"]
    assert int(unit["TimeoutStopSec"][0]) > ServerConfig().shutdown_timeout + GRACE_S
    assert unit["TimeoutStartSec"] == ["infinity"]


def test_a_failed_daemon_is_restarted_and_a_wrong_flag_is_not() -> None:
    unit = settings("ebbtide.service")
    assert (unit["Restart"], unit["RestartPreventExitStatus"]) == (["on-failure"], ["2"])
    assert unit["OOMPolicy"] == ["continue"]


def test_the_command_takes_its_arguments_from_the_environment_file() -> None:
    (command,) = settings("ebbtide.service")["ExecStart"]
    environment = settings("ebbtide.env")
    assert command.split()[1:] == ["serve", "${EBBTIDE_MODEL}", "$EBBTIDE_FLAGS"]
    assert set(environment) == {"EBBTIDE_MODEL", "EBBTIDE_FLAGS"}
    assert parsed(environment["EBBTIDE_FLAGS"][0].split()).host == "127.0.0.1"


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The unit with its drop-in, with the path of a program that exists on this machine."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (FOLDER / "ebbtide.service").read_text().replace("/opt/ebbtide/bin/ebbtide", "/bin/true")
    (tmp_path / "ebbtide.service.d").mkdir()
    shutil.copy(FOLDER / "gpu.conf", tmp_path / "ebbtide.service.d")
    (tmp_path / "ebbtide.service").write_text(text)
    return tmp_path


@pytest.mark.soak
def test_systemd_accepts_the_unit(units: Path) -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(units / "ebbtide.service")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.soak
def test_the_sandbox_is_tight(units: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={MAX_EXPOSURE * 10:.0f}"]
    shutil.rmtree(units / "ebbtide.service.d")
    checked = subprocess.run([*command, str(units / "ebbtide.service")], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
