"""Resolves MODEL on the command line to files on disk. The module reads no weights and does not import torch."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import StartupError

MAX_ID = 2**31  # exclusive upper bound of token ids
DEFAULT_MODEL = "smollm2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# A part of a split GGUF file has its number (from 1) and the number of parts in its name, both with five digits.
SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The location of a model.

    Attributes:
        name: the model's default name in the API.
        directory: folder of the Hugging Face model or of the GGUF file; "" for the simulated model.
        gguf: name of the GGUF file in ``directory``, or of its first part if it is split; None for safetensors.
    """

    name: str
    directory: str = ""
    gguf: str | None = None

    @property
    def simulated(self) -> bool:
        """True for the simulated model."""
        return not self.directory


def cache_dir() -> Path:
    """Return ebbtide's cache folder: $EBBTIDE_CACHE if it is set, else ``ebbtide`` in the user's cache folder."""
    override = os.environ.get("EBBTIDE_CACHE")
    if override:
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ebbtide"


def smollm2_path() -> Path:
    """Return the path to which ``ebbtide pull smollm2`` writes the default model."""
    return cache_dir() / "smollm2" / SMOLLM2_FILE


def resolve_model(model: str) -> ModelFiles:
    """Return the location of MODEL. A Hub model is downloaded if it is not in the cache.

    Raises StartupError if the model does not exist or cannot be downloaded.
    """
    if model == "sim":
        return ModelFiles(name="sim")
    if model == DEFAULT_MODEL:
        return _gguf(smollm2_path(), name=DEFAULT_MODEL, missing="Run `ebbtide pull smollm2` first.")
    path = Path(model).expanduser()
    if path.suffix == ".gguf" and (path.exists() or ":" not in model):
        return _gguf(path, name=path.stem, missing="Give the path of a GGUF file that exists.")
    if path.is_dir():
        return _folder(path)
    return _from_hub(model, path)


def resolve_embedding_model(model: str | None) -> ModelFiles | None:
    """Return the location of --embedding-model; None if ``model`` is None.

    Raises StartupError if the model is neither a folder in Hugging Face format nor such a model of the Hub.
    """
    if model is None:
        return None
    files = resolve_model(model)
    if not files.directory or files.gguf is not None:
        raise StartupError(f"--embedding-model {model!r} must be a folder in Hugging Face format or a Hub id.")
    return files


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file that must contain an object.

    Raises a StartupError that names the file if it cannot be read or contains anything else.
    """
    if path.exists() and not path.is_file():  # reading a named pipe would block forever
        raise StartupError(f"The file {path} cannot be read as JSON: it is not a regular file.")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StartupError(f"The file {path} cannot be read as JSON: {one_line(error)}.") from error
    if not isinstance(value, dict):
        raise StartupError(f"The file {path} must contain a JSON object, not {type(value).__name__}.")
    return value


def token_ids(value: object, where: str) -> set[int]:
    """Convert the value of ``eos_token_id``, which is an id, a list of ids, or None or −1 for no id.

    Raises StartupError for any other value. where: name of the file, for the error message.
    """
    values: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(one) in (int, float) and one == one // 1 and -1 <= one < MAX_ID for one in values):
        raise StartupError(
            f"The field eos_token_id in {where} must be a token id or a list of them, not {value!r:.80}."
        )
    return {int(one) for one in values if one >= 0}


def one_line(error: BaseException) -> str:
    """Return an exception's message in one line of at most 300 characters, without its full stop.

    The name of the exception's class is put first if the message is empty or the class is not a ValueError, OSError or
    RuntimeError.
    """
    text = " ".join(str(error).split())
    if not isinstance(error, ValueError | OSError | RuntimeError) or not text:
        text = f"{type(error).__name__}: {text}"
    return text[:300].rstrip(".: ")


def split_parts(file: str) -> list[str]:
    """Return the names of all parts of a split GGUF file, given one of them; [``file``] if it is not split."""
    match = SPLIT_NAME.fullmatch(file)
    if match is None or int(match[3]) == 0:
        return [file]
    return [f"{match[1]}-{part:05d}-of-{match[3]}.gguf" for part in range(1, int(match[3]) + 1)]


def _gguf(path: Path, *, name: str, missing: str) -> ModelFiles:
    if not path.is_file():
        raise StartupError(f"There is no model file {path}. {missing}")
    parts = split_parts(path.name)
    if len(parts) > 1:
        _require_parts(path.parent, parts)
        path, name = path.parent / parts[0], parts[0][: -len("-00001-of-00001.gguf")]
    return ModelFiles(name=name, directory=str(path.parent.resolve()), gguf=path.name)


def _require_parts(directory: Path, parts: list[str]) -> None:
    for part in parts:
        if not (directory / part).is_file():
            raise StartupError(
                f"The GGUF file is split into {len(parts)} parts, and the part {directory / part} is missing."
            )


def _folder(path: Path) -> ModelFiles:
    if not (path / "config.json").is_file():
        raise StartupError(f"The folder {path} has no config.json, so it is not a model in Hugging Face format.")
    return ModelFiles(name=path.resolve().name, directory=str(path.resolve()))


def _from_hub(model: str, path: Path) -> ModelFiles:
    from ..hub.names import parse_name

    name = parse_name(model)
    if name is None or path.exists() or model.startswith((".", "~")):
        raise StartupError(
            f"MODEL {model!r} is neither a folder in Hugging Face format, a .gguf file nor OWNER/NAME of the Hub."
        )
    from ..hub.fetch import resolve_hub_model

    return resolve_hub_model(name)
