"""A damaged tokenizer is refused at start, with one sentence that names the file and, if possible, the field."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ebbtide.errors import StartupError
from ebbtide.tokenization.model_files import ModelFiles, read_json_object
from ebbtide.tokenization.tokenizer import FastTokenizer, load_tokenizer

from .test_tokenizer import byte_level, fast

Change = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return tmp_path


def text_in(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text)


def template(value: object) -> Change:
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": value}
    return text_in("tokenizer_config.json", json.dumps(fields))


DAMAGED: dict[str, tuple[Change, str]] = {
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), r"there is no tokenizer\.json\.$"),
    "an empty file": (text_in("tokenizer.json", ""), r"tokenizer\.json cannot be read as JSON: "),
    "a list": (text_in("tokenizer.json", "[]"), r"tokenizer\.json must contain a JSON object, not list\.$"),
    "null": (text_in("tokenizer.json", "null"), r"tokenizer\.json must contain a JSON object, not NoneType\.$"),
    "half a file": (text_in("tokenizer.json", '{"added'), r"tokenizer\.json cannot be read as JSON: "),
    "empty settings": (text_in("tokenizer_config.json", ""), r"tokenizer_config\.json cannot be read as JSON: "),
    "a list of settings": (
        text_in("tokenizer_config.json", "[]"),
        r"tokenizer_config\.json must contain a JSON object",
    ),
    **{
        f"the template {value!r}": (
            template(value),
            r"^The field chat_template in .*tokenizer_config\.json must be a text",
        )
        for value in (5, True, [], [1], [{"name": "x"}], [{"name": 1, "template": "x"}], {}, {"default": 5}, 1.5)
    },
}


@pytest.mark.parametrize(("change", "sentence"), DAMAGED.values(), ids=DAMAGED)
def test_the_sentence_names_the_file(change: Change, sentence: str, folder: Path) -> None:
    change(folder)
    with pytest.raises(StartupError, match=sentence) as refusal:
        load_tokenizer(ModelFiles("tiny", str(folder)))
    assert str(folder) in str(refusal.value)


@pytest.mark.parametrize("value", [None, "{{ 1 }}", [{"name": "default", "template": "x"}], {"default": "x"}])
def test_every_form_of_a_template_is_accepted(value: object, folder: Path) -> None:
    template(value)(folder)
    assert bool(load_tokenizer(ModelFiles("tiny", str(folder))).chat_template) == (value is not None)


def test_a_named_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(StartupError, match=r"config\.json cannot be read as JSON: it is not a regular file\.$"):
        read_json_object(tmp_path / "config.json")


def vocabulary(ids: dict[str, int]) -> Any:
    tokenizer = Tokenizer(models.BPE(ids, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return fast(tokenizer)


def test_an_id_far_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(StartupError, match=r"has 2 tokens, but the id of the token 'b' is 16777216\.$"):
        FastTokenizer(vocabulary({"a": 0, "b": 2**24}))
    with pytest.raises(StartupError, match=r"has no tokens\.$"):
        FastTokenizer(vocabulary({}))
    assert FastTokenizer(vocabulary({"a": 0, "b": 9999})).vocab_size == 10_000


@pytest.mark.parametrize(("tokens", "num_types"), [([], 0), (["a", "b", "c"], 2), (["a"], 2)])
def test_a_gguf_vocabulary_has_a_type_for_each_token(tokens: list[str], num_types: int, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_string("tokenizer.ggml.model", "gpt2")
    for key, values in (("tokens", tokens), ("token_type", [1] * num_types)):
        if values:
            writer.add_array(f"tokenizer.ggml.{key}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(StartupError, match=rf"it has {len(tokens)} tokens .* and {num_types} token types "):
        load_tokenizer(ModelFiles("tiny", str(tmp_path), "tiny.gguf"))
