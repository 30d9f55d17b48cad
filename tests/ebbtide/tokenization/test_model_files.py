from pathlib import Path

import pytest

from ebbtide.errors import StartupError
from ebbtide.tokenization.model_files import ModelFiles, cache_dir, resolve_model, smollm2_path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_sim_has_no_files() -> None:
    assert resolve_model("sim") == ModelFiles("sim")
    assert resolve_model("sim").simulated


def test_the_cache_folder_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert cache_dir() == cache
    monkeypatch.delenv("EBBTIDE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/ebbtide")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "ebbtide"


def test_the_packaged_model_is_found_once_it_was_pulled() -> None:
    with pytest.raises(StartupError, match="ebbtide pull smollm2"):
        resolve_model("smollm2")
    smollm2_path().parent.mkdir(parents=True)
    smollm2_path().touch()
    files = resolve_model("smollm2")
    assert (files.name, files.directory, files.gguf) == ("smollm2", str(smollm2_path().parent), smollm2_path().name)
    assert not files.simulated


def test_a_gguf_file_is_served_under_its_stem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Tide-1B.gguf").touch()
    expected = ModelFiles("Tide-1B", str(tmp_path), "Tide-1B.gguf")
    assert resolve_model(str(tmp_path / "Tide-1B.gguf")) == expected
    monkeypatch.chdir(tmp_path)
    assert resolve_model("Tide-1B.gguf") == expected


def test_a_folder_is_served_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tide-2b"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder)) == ModelFiles("tide-2b", str(folder))
    monkeypatch.chdir(folder)
    assert resolve_model(".") == ModelFiles("tide-2b", str(folder))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("/no/such/folder", "neither a folder"),
        ("./no-such", "neither a folder"),
        ("no-such", "neither a folder"),
        ("a/b/c", "neither a folder"),
        ("/no/such.gguf", r"There is no model file /no/such\.gguf"),
        ("empty", "has no config.json"),
        ("file.txt", "neither a folder"),
    ],
)
def test_a_path_that_is_not_a_model_is_refused_in_one_sentence(
    model: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StartupError, match=sentence) as refusal:
        resolve_model(model)
    assert "\n" not in str(refusal.value)
