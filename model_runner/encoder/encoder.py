"""A sentence-transformers model: an embedding model, or a cross-encoder, which scores text pairs.

The library does the tokenization, the pooling and the activation, so that the results equal those of the library.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ebbtide.config import EncoderConfig
from ebbtide.errors import StartupError
from ebbtide.messages import EncoderInfo
from ebbtide.tokenization.model_files import ModelFiles, one_line, read_json_object

Value = str | tuple[str, str] | list[int]
Rows = NDArray[np.float32]  # [n, dimensions]


class Encoder(Protocol):
    """A loaded embedding model or cross-encoder."""

    @property
    def info(self) -> EncoderInfo: ...

    def count_tokens(self, value: Value) -> int:
        """Return the number of tokens of an input, including special tokens, without truncation."""

    def compute(self, values: Sequence[Value]) -> Rows:
        """Return one vector or score per input, in order. All inputs must have the same type."""


def load_encoder(files: ModelFiles, config: EncoderConfig) -> Encoder:
    """Load the model. Raises StartupError if it cannot be loaded or sentence-transformers is not installed."""
    try:
        import sentence_transformers
    except ImportError:
        raise StartupError(
            "--embedding-model needs the package sentence-transformers: pip install 'ebbtide[embeddings]'."
        ) from None
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)  # the daemon reports the same progress
    transformers.utils.logging.disable_progress_bar()
    try:
        if is_cross_encoder(Path(files.directory)):
            return CrossEncoderModel(
                sentence_transformers.CrossEncoder(files.directory, device=config.embedding_device)
            )
        model = sentence_transformers.SentenceTransformer(files.directory, device=config.embedding_device)
        return EmbeddingModel(model, shorter=config.embedding_matryoshka)
    except StartupError:
        raise
    except Exception as error:  # the library does not document its exceptions for invalid files
        raise StartupError(f"The embedding model {files.name} cannot be loaded: {one_line(error)}.") from error


def is_cross_encoder(folder: Path) -> bool:
    """Return True if the model in ``folder`` classifies its input. Raises StartupError if config.json is damaged."""
    names = read_json_object(folder / "config.json").get("architectures") or []
    return any(str(name).endswith("ForSequenceClassification") for name in names)


class EmbeddingModel:
    """A ``SentenceTransformer`` as an ``Encoder``."""

    def __init__(self, model: Any, *, shorter: bool) -> None:
        self._model = model
        self._tokenizer = model.tokenizer
        self._prompt = (model.prompts or {}).get(model.default_prompt_name or "", "")
        row = self.compute(["a"])
        self.info = EncoderInfo(
            scores_pairs=False,
            context_length=_longest(model, self._tokenizer),
            vocab_size=len(self._tokenizer),
            dimensions=row.shape[1],
            shorter=shorter or _states_shorter(model),
        )

    def count_tokens(self, value: Value) -> int:
        """See ``Encoder``."""
        if isinstance(value, list):
            return len(value)
        return len(self._tokenizer(f"{self._prompt}{value}", truncation=False, verbose=False)["input_ids"])

    def compute(self, values: Sequence[Value]) -> Rows:
        """See ``Encoder``."""
        if isinstance(values[0], list):
            return self._compute_ids(values)
        rows: Rows = self._model.encode(list(values), batch_size=len(values), show_progress_bar=False)
        return rows.astype("<f4")

    def _compute_ids(self, values: Sequence[Value]) -> Rows:
        padded = self._tokenizer.pad({"input_ids": list(values)}, return_tensors="pt", verbose=False)
        with torch.inference_mode():
            features = {name: tensor.to(self._model.device) for name, tensor in padded.items()}
            rows: Rows = self._model(features)["sentence_embedding"].float().cpu().numpy()
        return rows.astype("<f4")


class CrossEncoderModel:
    """A ``CrossEncoder`` with one label as an ``Encoder``."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._tokenizer = model.tokenizer
        if model.config.num_labels != 1:
            raise StartupError(
                f"The embedding model classifies into {model.config.num_labels} classes; only models with one score are"
                " supported."
            )
        self.info = EncoderInfo(
            scores_pairs=True,
            context_length=_longest(model, self._tokenizer),
            vocab_size=len(self._tokenizer),
            dimensions=1,
        )

    def count_tokens(self, value: Value) -> int:
        """See ``Encoder``."""
        return len(self._tokenizer(*value, truncation=False, verbose=False)["input_ids"])

    def compute(self, values: Sequence[Value]) -> Rows:
        """See ``Encoder``."""
        scores: Rows = self._model.predict(list(values), batch_size=len(values), show_progress_bar=False)
        return scores.reshape(len(values), 1).astype("<f4")


def _longest(model: Any, tokenizer: Any) -> int:
    """Return the maximum number of tokens of an input, at most 2^20 if the model itself states no limit."""
    name = "max_seq_length" if hasattr(model, "max_seq_length") else "max_length"  # in older cross-encoders
    return int(getattr(model, name) or min(tokenizer.model_max_length, 1 << 20))


def _states_shorter(model: Any) -> bool:
    """Return True if the model's configuration states that it was trained for shortened vectors."""
    config = getattr(model[0], "config", None)
    fields = json.loads(config.to_json_string()) if config is not None else {}
    return bool(fields.get("matryoshka_dimensions") or fields.get("is_matryoshka"))
