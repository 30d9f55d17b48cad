"""Tokenizers that transformers loads are kept as files, and loaded from them without transformers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import StartupError
from ebbtide.tokenization import tokenizer_cache
from ebbtide.tokenization.model_files import ModelFiles
from ebbtide.tokenization.tokenizer import ChatPrompt, FastTokenizer, load_tokenizer
from ebbtide.tokenization.tokenizer_cache import load_cached_tokenizer

from ...model_runner.checkpoints import write_tokenizer

CHAT = ChatPrompt([{"role": "user", "content": "the <|end|> tide"}])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder for cached tokenizers. The separate process is replaced by a call in this process."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        code = tokenizer_cache._main(*command[4:])
        return subprocess.CompletedProcess(command, code, "", "")

    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("ebbtide.tokenization.tokenizer_cache.subprocess.run", run)
    return tmp_path / "cache" / "tokenizers"


def folder(path: Path) -> ModelFiles:
    path.mkdir()
    write_tokenizer(path)
    (path / "config.json").write_text('{"model_type": "llama", "eos_token_id": 2}')
    return ModelFiles("m", str(path))


def test_a_cached_tokenizer_equals_the_original(cache: Path, tmp_path: Path) -> None:
    files = folder(tmp_path / "m")
    original = load_tokenizer(files)
    load_cached_tokenizer(files)
    (stored,) = cache.iterdir()
    changed = stored.stat().st_mtime_ns
    again = load_cached_tokenizer(files)
    assert stored.stat().st_mtime_ns == changed
    assert isinstance(again, FastTokenizer)
    assert (again.vocabulary, again.info, again.vocab_size) == (original.vocabulary, original.info, original.vocab_size)
    assert again.encode_chat(CHAT) == original.encode_chat(CHAT)
    assert again.encode("the tide", add_special_tokens=True) == original.encode("the tide", add_special_tokens=True)


def test_changed_files_and_damaged_entries_are_loaded_again(cache: Path, tmp_path: Path) -> None:
    files = folder(tmp_path / "m")
    load_cached_tokenizer(files)
    (first,) = cache.iterdir()
    whole = first.read_bytes()
    first.write_bytes(whole[: len(whole) // 2])
    load_cached_tokenizer(files)
    assert first.read_bytes() == whole
    Path(files.directory, "config.json").write_text('{"model_type": "llama", "eos_token_id": 5}')
    assert 5 in load_cached_tokenizer(files).vocabulary.eos_ids
    assert len(list(cache.iterdir())) == 2


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path / "file" / "cache"))
    files = folder(tmp_path / "m")
    assert load_cached_tokenizer(files).vocabulary == load_tokenizer(files).vocabulary
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_the_other_processs_refusal_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(StartupError, match=r"^The file .*config\.json must contain a JSON object, not list\.$"):
        load_cached_tokenizer(ModelFiles("m", str(tmp_path)))
