"""``ebbtide list``, ``show`` and ``rm``, on a cache that the test writes."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import pytest

from ebbtide.commands.models.facts import ModelFacts, read_facts
from ebbtide.errors import StartupError
from ebbtide.runtime.daemon_record import DaemonRecord, write_record
from ebbtide.runtime.socket_directory import socket_directory
from ebbtide.server import cli
from ebbtide.tokenization.model_files import ModelFiles, smollm2_path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(short_tmp))
    return tmp_path / "hub"


def add(hub: Path, name: str, files: dict[str, bytes]) -> Path:
    """Write a repository as huggingface_hub does. Returns its folder."""
    folder = hub / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / "abc"
    for part in (folder / "blobs", folder / "refs", snapshot):
        part.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text("abc")
    for path, content in files.items():
        blob = folder / "blobs" / f"{len(list((folder / 'blobs').iterdir())):064}"
        blob.write_bytes(content)
        (snapshot / path).symlink_to(os.path.relpath(blob, snapshot))
    return folder


def safetensors(shape: list[int]) -> bytes:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]}}).encode()
    return struct.pack("<Q", len(header)) + header


def add_folder(hub: Path) -> Path:
    files = {"config.json": json.dumps(CONFIG).encode(), "tokenizer.json": b"{}"}
    return add(hub, "tide/t", {**files, "model.safetensors": safetensors([1000, 1000])})


def test_models_are_listed_by_name_size_and_kind(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    assert "No model is downloaded" in capsys.readouterr().out
    add_folder(hub)
    repository = add(hub, "tide/t-GGUF", {"t-Q4_K_M.gguf": b"1" * 2000, "t-Q8_0-00001-of-00002.gguf": b"1"})
    (repository / "blobs" / "ff.incomplete").write_bytes(b"123")
    smollm2_path().parent.mkdir(parents=True)
    smollm2_path().write_bytes(b"1" * 1_500_000)
    assert cli.main(["list"]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert [line[:1] + line[2:3] for line in cells] == [
        ["NAME", "KIND"],
        ["smollm2", "GGUF Q4_1"],
        ["tide/t", "safetensors"],
        ["tide/t-GGUF:Q4_K_M", "GGUF Q4_K_M"],
        ["tide/t-GGUF:Q8_0", "GGUF Q8_0, incomplete"],
        ["tide/t-GGUF", "interrupted download"],
    ]
    size = f"{len(json.dumps(CONFIG)) + len(b'{}') + len(safetensors([1000, 1000]))} B"
    assert [line[1] for line in cells][1:] == ["2 MB", size, "2 kB", "1 B", "3 B"]
    assert cli.main(["list", "--names"]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == ["tide/t", "tide/t-GGUF:Q4_K_M"]


def test_a_model_is_deleted_with_its_content_and_others_stay(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add(hub, "tide/t", {"t-Q4_K_M.gguf": b"1", "t-Q8_0.gguf": b"2"})
    assert cli.main(["rm", "-y", "tide/t:q8_0"]) == 0
    assert capsys.readouterr().out == "Deleted tide/t:Q8_0 (1 B).\n"
    assert [path.read_bytes() for path in (folder / "blobs").iterdir()] == [b"1"]
    assert cli.main(["rm", "-y", "tide/t"]) == 0
    assert not folder.exists()


def test_a_deletion_asks_and_refuses_without_a_terminal(
    hub: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = add_folder(hub)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert cli.main(["rm", "tide/t"]) == 1
    assert "Give -y to delete tide/t" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert cli.main(["rm", "tide/t"]) == 1
    assert capsys.readouterr().err == "Nothing was deleted.\n"
    assert (folder / "snapshots" / "abc" / "model.safetensors").exists()


@pytest.mark.parametrize("gguf_file", [None, "t-Q8_0.gguf"])
def test_a_model_that_is_served_is_not_deleted(
    hub: Path, gguf_file: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = add(hub, "tide/g", {"t-Q8_0.gguf": b"2", "t-Q4_0.gguf": b"3"}) if gguf_file else add_folder(hub)
    name = "tide/g:Q8_0" if gguf_file else "tide/t"
    with socket_directory() as directory:
        served = str(folder / "snapshots" / "abc")
        write_record(directory, DaemonRecord(7, "", "x", ("x",), served, gguf_file, started=1.0))
        assert cli.main(["rm", "-y", name]) == 1
        assert "The server with process id 7 serves" in capsys.readouterr().err
        if gguf_file:
            assert cli.main(["rm", "-y", "tide/g:Q4_0"]) == 0


def test_an_unknown_name_is_refused_with_those_that_exist(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_folder(hub)
    for words in (["rm", "-y", "tide/none"], ["show", "tide/none"]):
        assert cli.main(words) == 1
        assert "There is no downloaded model 'tide/none'; downloaded: tide/t." in capsys.readouterr().err


def test_show_computes_the_memory_of_safetensors(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_folder(hub)
    assert cli.main(["show", "tide/t"]) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    shown = {label.strip(): value.strip() for label, value in lines.items()}
    assert shown["architecture"] == "LlamaForCausalLM"
    assert shown["parameters"] == "1.0 million"
    assert shown["context"] == "64 tokens"
    assert shown["weights in bfloat16"] == "2 MB"
    assert shown["KV cache"] == f"{2 * 2 * 2 * 8 * 2} bytes per token in bfloat16"
    assert "tokens of KV in the default pool" in shown["fits here"]


@pytest.mark.parametrize(("kv_heads", "total"), [(2, 3 * 2), ([0, 2, 0], 2)], ids=["every layer", "one layer"])
def test_facts_of_a_gguf_file_come_from_its_header(kv_heads: int | list[int], total: int, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_block_count(3)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(kv_heads)
    writer.add_tensor("w", np.zeros((8, 32), np.float16))
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    facts = read_facts(ModelFiles("t", str(tmp_path), "t.gguf"))
    size = (tmp_path / "t.gguf").stat().st_size
    assert facts == ModelFacts("llama", 256, 128, total * 8 * 2, size, ("F16",))


@pytest.mark.parametrize(
    ("fields", "num_layers"),
    [
        ({}, 4),
        ({"layer_types": ["conv", "full_attention", "linear_attention", "mamba"]}, 1),
        ({"full_attn_idxs": [1, 3]}, 2),
    ],
)
def test_layers_without_attention_have_no_kv(fields: dict[str, object], num_layers: int, tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(sizes | fields))
    (tmp_path / "model.safetensors").write_bytes(safetensors([3]))
    assert read_facts(ModelFiles("t", str(tmp_path))).kv_numbers == 2 * num_layers * 2 * 8


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 20, struct.pack("<Q", 2) + b"[]"])
def test_damaged_weights_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(StartupError, match=r"The weights file .*model\.safetensors is damaged"):
        read_facts(ModelFiles("t", str(tmp_path)))


def test_a_model_without_the_usual_fields_has_no_number(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "odd", "kv_lora_rank": 1}))
    (tmp_path / "model.safetensors").write_bytes(safetensors([3]))
    facts = read_facts(ModelFiles("t", str(tmp_path)))
    assert (facts.architecture, facts.kv_numbers, facts.context_length) == ("odd", None, None)
