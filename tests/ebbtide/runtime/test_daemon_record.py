import tempfile
from pathlib import Path

import pytest

from ebbtide.runtime.daemon_record import FILE, DaemonRecord, living_records, write_record
from ebbtide.runtime.socket_directory import socket_directory

RECORD = DaemonRecord(1, "http://127.0.0.1:1", "o/n", ("tide",), "/m", "m.gguf", started=2.0, needs_key=True)


@pytest.fixture(autouse=True)
def tmp(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_tmp))


def test_a_daemon_is_found_from_its_readiness_to_its_end() -> None:
    with socket_directory() as directory:
        assert living_records() == []
        write_record(directory, RECORD)
        assert living_records() == [RECORD]
    assert living_records() == []


def test_a_record_of_a_killed_daemon_or_of_another_version_is_ignored(tmp_path: Path) -> None:
    stale = tmp_path / "ebbtide-stale"
    stale.mkdir()
    (stale / "lock").write_text("1")
    write_record(stale, RECORD)
    with socket_directory() as directory:
        (directory / FILE).write_text('{"pid": "none"}')
        assert living_records() == []


def test_a_daemon_is_called_by_its_model_and_its_names() -> None:
    assert [name for name in ("o/n", "tide", "m.gguf", "o") if RECORD.is_called(name)] == ["o/n", "tide"]
