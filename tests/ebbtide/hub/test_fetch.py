"""Downloads from a fake Hub over HTTP, with the real huggingface_hub."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.errors import StartupError
from ebbtide.hub.cache import cached_repositories, cached_repository
from ebbtide.hub.fetch import fetch, resolve_hub_model
from ebbtide.hub.names import HubName
from ebbtide.hub.transfer import LargeFile, Transfer
from ebbtide.tokenization.model_files import resolve_model
from tests.ebbtide.hub.fake_hub import COMMIT, FakeHub, FakeRepository

WEIGHTS = bytes(range(256)) * 8000  # two chunks
SMALL = {"config.json": b"{}", "tokenizer.json": b'{"a": 1}', "README.md": b"#"}
Q4, Q8 = HubName("tide/t-GGUF", "Q4_K_M"), HubName("tide/t-GGUF", "Q8_0")


def add_gguf(hub: FakeHub, **settings: Any) -> FakeRepository:
    files = {"t-Q4_K_M.gguf": WEIGHTS, "t-Q8_0.gguf": WEIGHTS[::-1], "README.md": b"#"}
    hub.repositories["tide/t-GGUF"] = FakeRepository(files, **settings)
    return hub.repositories["tide/t-GGUF"]


def blobs() -> Path:
    return cached_repository("tide/t-GGUF").folder / "blobs"


def test_a_quantization_is_fetched_alone_and_then_served_without_the_hub(hub: FakeHub) -> None:
    add_gguf(hub)
    files = resolve_model("tide/t-GGUF:q4_k_m")
    assert (files.name, files.gguf) == ("tide/t-GGUF:Q4_K_M", "t-Q4_K_M.gguf")
    assert Path(files.directory, "t-Q4_K_M.gguf").read_bytes() == WEIGHTS
    assert [path for method, path, _ in hub.requests if path.startswith("/cdn/")] == ["/cdn/tide/t-GGUF/t-Q4_K_M.gguf"]
    hub.requests.clear()
    assert resolve_model("tide/t-GGUF:Q4_K_M") == resolve_model("tide/t-GGUF") == files
    assert hub.requests == []


def test_safetensors_are_fetched_with_their_small_files(hub: FakeHub) -> None:
    index = json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    )
    parts = {f"model-0000{part}-of-00002.safetensors": WEIGHTS + b"%d" % part for part in (1, 2)}
    hub.repositories["tide/t"] = FakeRepository({**SMALL, **parts, "model.safetensors.index.json": index.encode()})
    files = resolve_hub_model(HubName("tide/t"))
    found = {path.name: path.read_bytes() for path in Path(files.directory).iterdir()}
    assert found == {
        **parts,
        "config.json": b"{}",
        "tokenizer.json": b'{"a": 1}',
        "model.safetensors.index.json": index.encode(),
    }
    assert (files.name, files.gguf, Path(files.directory).name) == ("tide/t", None, COMMIT)
    (Path(files.directory) / "model-00002-of-00002.safetensors").unlink()
    assert cached_repository("tide/t").find(HubName("tide/t")) is None


def test_every_part_of_a_split_gguf_file_is_fetched(hub: FakeHub) -> None:
    parts = {f"Q4_K_M/t-Q4_K_M-0000{part}-of-00002.gguf": WEIGHTS + b"%d" % part for part in (1, 2)}
    hub.repositories["tide/t-GGUF"] = FakeRepository(parts)
    files = resolve_hub_model(Q4)
    assert files.gguf == "t-Q4_K_M-00001-of-00002.gguf"
    assert [path.read_bytes() for path in sorted(Path(files.directory).iterdir())] == list(parts.values())


def test_a_broken_connection_is_continued_where_it_broke(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    add_gguf(hub, cut_after=[500_000, 300_000])
    fetch(Q4, pause_s=0)
    assert hub.gets_of("tide/t-GGUF/t-Q4_K_M.gguf") == [None, "bytes=500000-", "bytes=800000-"]
    assert caplog.text.count("was interrupted") == 2


def test_an_interrupted_download_is_continued_by_the_next_call(hub: FakeHub) -> None:
    add_gguf(hub, cut_after=[400_000, 0, 0, 0, 0, 0])
    with pytest.raises(StartupError, match=r"could not be reached: .*Check the network"):
        fetch(Q4, pause_s=0)
    (part,) = blobs().glob("*.incomplete")
    assert part.stat().st_size == 400_000
    assert cached_repositories()[0].unfinished == [part]
    hub.requests.clear()
    files = fetch(Q4)
    assert hub.gets_of("tide/t-GGUF/t-Q4_K_M.gguf") == ["bytes=400000-"]
    assert Path(files.directory, files.gguf or "").read_bytes() == WEIGHTS


def test_a_server_that_ignores_ranges_sends_the_file_from_the_beginning(hub: FakeHub) -> None:
    add_gguf(hub, cut_after=[400_000], ignores_ranges=True)
    files = fetch(Q4, pause_s=0)
    assert Path(files.directory, files.gguf or "").read_bytes() == WEIGHTS


def test_a_damaged_download_is_refused_and_fetched_again(hub: FakeHub) -> None:
    repository = add_gguf(hub, wrong=b"x" + WEIGHTS[1:])
    with pytest.raises(StartupError, match=r"The download of t-Q4_K_M\.gguf is damaged: sha256 \w+ instead of"):
        fetch(Q4)
    assert list(blobs().iterdir()) == []
    repository.wrong = None
    assert fetch(Q4).gguf == "t-Q4_K_M.gguf"


def test_pulling_again_fetches_nothing_and_another_quantization_only_itself(hub: FakeHub) -> None:
    add_gguf(hub)
    fetch(Q4)
    hub.requests.clear()
    fetch(Q4)
    fetch(Q8)
    assert [path for _, path, _ in hub.requests if path.startswith("/cdn/")] == ["/cdn/tide/t-GGUF/t-Q8_0.gguf"]
    assert [str(choice.name) for choice in cached_repository("tide/t-GGUF").models()] == [str(Q4), str(Q8)]


def test_an_unknown_quantization_is_refused_with_those_that_exist(hub: FakeHub) -> None:
    add_gguf(hub)
    with pytest.raises(StartupError, match=r"has no Q3_K: tide/t-GGUF:Q4_K_M, tide/t-GGUF:Q8_0\."):
        resolve_model("tide/t-GGUF:Q3_K")


def test_an_unknown_repository_is_refused_in_one_sentence(hub: FakeHub) -> None:
    with pytest.raises(StartupError, match=r"The Hub has no repository tide/none, or it is private.*HF_TOKEN"):
        resolve_model("tide/none")


@pytest.mark.parametrize("safetensors", [False, True])
def test_a_gated_repository_says_how_to_give_a_token(hub: FakeHub, safetensors: bool) -> None:
    repository = add_gguf(hub, gate=("GatedRepo", 403))
    if safetensors:
        repository.files = {**SMALL, "model.safetensors": WEIGHTS}
    with pytest.raises(
        StartupError, match=r"is gated: accept its conditions on http\S+/tide/t-GGUF, then set HF_TOKEN"
    ):
        resolve_model("tide/t-GGUF")


def test_the_token_is_sent_to_the_hub_alone(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    add_gguf(hub)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch(Q4)
    assert set(hub.tokens) == {"Bearer hf_secret"}
    assert set(hub.cdn_tokens) == {None}


def test_an_error_of_the_hub_is_refused_with_its_status(hub: FakeHub) -> None:
    add_gguf(hub, gate=("", 500))
    with pytest.raises(StartupError, match=r"answered 500 for tide/t-GGUF"):
        fetch(Q4)


def test_an_unreachable_hub_says_that_pulled_models_need_none(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the port is reserved and closed
    with pytest.raises(StartupError, match=r"is not in the cache, and the Hub at http://127\.0\.0\.1:9 could not be"):
        resolve_model("tide/t")


def test_a_full_disk_is_noticed_before_the_download(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    add_gguf(hub)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(StartupError, match=r"too full: the download needs 0\.00 GB.*HF_HUB_CACHE"):
        fetch(Q4)
    assert hub.gets_of("tide/t-GGUF/t-Q4_K_M.gguf") == []


def test_a_folder_that_cannot_be_written_is_named(hub: FakeHub, tmp_path: Path) -> None:
    add_gguf(hub)
    (tmp_path / "hub").write_text("a file instead of a folder")
    with pytest.raises(StartupError, match=r"could not be written to .*/hub: Not a directory"):
        fetch(Q4)


def test_serving_a_model_records_its_use(hub: FakeHub) -> None:
    add_gguf(hub)
    files = fetch(Q4)
    weights = Path(files.directory, files.gguf or "")
    os.utime(weights, ns=(1, 1))
    resolve_model("tide/t-GGUF:Q4_K_M")
    assert weights.stat().st_atime_ns > 1 == weights.stat().st_mtime_ns


def test_a_file_is_fetched_by_its_name(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    hub.repositories["tide/t"] = FakeRepository({"one.gguf": WEIGHTS, "two.gguf": WEIGHTS[::-1]})
    with caplog.at_level(logging.INFO):
        files = resolve_model("tide/t:two.gguf")
    assert (files.name, files.gguf) == ("tide/t:two.gguf", "two.gguf")
    assert "downloading two.gguf (2.0 MB)" in caplog.text


def listed(path: str, **lfs: Any) -> Any:
    """An edit that renames the requested file in the description, or changes its size or hash."""

    def edit(description: Any) -> Any:
        first = description["siblings"][0]
        return {**description, "siblings": [{**first, "rfilename": path, "lfs": {**first["lfs"], **lfs}}]}

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        lambda _: b"<html>Log in</html>",
        lambda _: [],
        lambda _: "text",
        lambda description: {**description, "sha": None},
        lambda description: {**description, "siblings": 3},
        lambda description: {**description, "siblings": [{"rfilename": None}]},
        listed("t-Q4_K_M.gguf", sha256="../../evil"),
        listed("t-Q4_K_M.gguf", sha256=None),
        listed("t-Q4_K_M.gguf", size="many"),
        listed("t-Q4_K_M.gguf", size=-1),
    ],
)
def test_an_answer_in_a_wrong_form_is_one_sentence_that_names_the_hub(hub: FakeHub, edit: Any) -> None:
    add_gguf(hub, edit=edit)
    with pytest.raises(StartupError) as refused:
        fetch(Q4, pause_s=0)
    message = str(refused.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert hub.url in message or "tide/t-GGUF" in message


@pytest.mark.parametrize(
    "path", ["../../evil-Q4_K_M.gguf", "/evil-Q4_K_M.gguf", "a/../../b-Q4_K_M.gguf", "..\\b-Q4_K_M.gguf"]
)
def test_a_path_that_leads_out_of_the_repository_is_refused_before_any_download(hub: FakeHub, path: str) -> None:
    add_gguf(hub, edit=listed(path))
    with pytest.raises(StartupError, match="not a path of a file in it"):
        fetch(Q4, pause_s=0)
    assert len(hub.requests) == 1


def test_a_file_that_is_longer_than_its_size_is_not_read_to_its_end(tmp_path: Path) -> None:
    class Response:
        status_code = 200

        def iter_bytes(self) -> Iterator[bytes]:
            yield from [b"12345678"] * 2
            pytest.fail("read on after the size of the file")

    client = SimpleNamespace(stream=lambda *_, **__: nullcontext(Response()))
    bar = nullcontext(SimpleNamespace(update=lambda _: None))
    transfer = Transfer(client, lambda _: None, (), lambda *_: bar, pause_s=0)
    with pytest.raises(StartupError, match="is damaged"):
        transfer.fetch(LargeFile("a", 10, "0" * 64), "http://hub/a", {}, tmp_path)
