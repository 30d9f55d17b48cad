import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.errors import StartupError
from ebbtide.runtime.socket_directory import addresses_in, living_daemons, socket_directory


@pytest.fixture(autouse=True)
def tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ebb-") as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Path(path)


def test_the_directory_is_private_and_removed_afterwards(tmp: Path) -> None:
    with socket_directory() as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert addresses_in(path).detokenizer == f"ipc://{path}/detokenizer"
        (path / "scheduler").touch()
    assert list(tmp.iterdir()) == []


def test_the_directory_is_removed_after_an_error_too(tmp: Path) -> None:
    with pytest.raises(ZeroDivisionError), socket_directory():
        raise ZeroDivisionError
    assert list(tmp.iterdir()) == []


def test_directories_of_living_daemons_stay_and_abandoned_ones_go(tmp: Path) -> None:
    dead = tmp / "ebbtide-dead"
    dead.mkdir(mode=0o700)
    (dead / "lock").touch()
    (tmp / "ebbtide-not-ours").mkdir()
    with socket_directory() as first, socket_directory() as second:
        assert first.is_dir()
        assert sorted(tmp.iterdir()) == sorted([first, second, tmp / "ebbtide-not-ours"])


def test_the_directory_of_a_killed_owner_is_removed(tmp: Path) -> None:
    code = "import os; from ebbtide.runtime.socket_directory import socket_directory as d\nwith d(): os._exit(0)"
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"TMPDIR": str(tmp)}, cwd=root)
    assert len(list(tmp.iterdir())) == 1
    with socket_directory() as path:
        assert list(tmp.iterdir()) == [path]


def test_a_path_too_long_for_a_socket_is_refused(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(StartupError, match="set TMPDIR to a shorter directory"), socket_directory():
        pass
    assert list(deep.iterdir()) == []


def test_living_daemons_are_found_by_the_process_that_holds_their_directory(tmp: Path) -> None:
    (tmp / "ebbtide-dead").mkdir(mode=0o700)
    (tmp / "ebbtide-dead" / "lock").write_text("1")
    assert living_daemons() == {}
    with socket_directory() as path:
        assert living_daemons() == {os.getpid(): path}
    assert living_daemons() == {}


def test_every_start_of_an_engine_has_addresses_of_its_own(tmp: Path) -> None:
    assert addresses_in(tmp, 1).scheduler == f"ipc://{tmp}/scheduler-1"
    assert addresses_in(tmp, 1).front != addresses_in(tmp).front
