"""The models on this machine: the packaged model and those in the Hub cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ebbtide.hub.cache import CachedRepository, cached_repositories
from ebbtide.hub.names import Choice
from ebbtide.tokenization.model_files import DEFAULT_MODEL, smollm2_path

from ...errors import StartupError


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on the disk.

    Attributes:
        kind: format and quantization, and whether the download is incomplete.
        files: the model's files on disk; for an interrupted download, the partial files.
        repository: the repository in the Hub cache; None for the packaged model.
    """

    name: str
    kind: str
    files: tuple[Path, ...]
    repository: CachedRepository | None = None

    @property
    def num_bytes(self) -> int:
        """Total size of the files in bytes."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def used(self) -> float:
        """Unix time of the last use: the latest access or modification of a file."""
        return max((max(path.stat().st_atime, path.stat().st_mtime) for path in self.files), default=0.0)


def local_models() -> list[LocalModel]:
    """Return all models on this machine, including interrupted downloads."""
    found = []
    if smollm2_path().is_file():
        found.append(LocalModel(DEFAULT_MODEL, "GGUF Q4_1", (smollm2_path(),)))
    for repository in cached_repositories():
        found += _models_of(repository)
    return found


def local_model(name: str) -> LocalModel:
    """Return the model with this name, in any case. Raises StartupError if no model, or more than one, matches."""
    models = local_models()
    chosen = [model for model in models if model.name.casefold() == name.casefold()]
    if not chosen:  # OWNER/NAME without a quantization matches if the cache holds only one quantization
        chosen = [model for model in models if model.name.casefold().startswith(f"{name.casefold()}:")]
    if len(chosen) == 1:
        return chosen[0]
    known = ", ".join(model.name for model in chosen or models) or "none"
    reason = "There are several models" if chosen else "There is no downloaded model"
    raise StartupError(f"{reason} {name!r}; downloaded: {known}.")


def _models_of(repository: CachedRepository) -> list[LocalModel]:
    choices = list(repository.models())
    models = [_model(repository, choice) for choice in choices]
    if repository.unfinished:
        models.append(
            LocalModel(repository.repository, "interrupted download", tuple(repository.unfinished), repository)
        )
    return models


def _model(repository: CachedRepository, choice: Choice) -> LocalModel:
    assert repository.snapshot is not None
    files = [repository.snapshot / path for path in (*choice.weights, *choice.others)]
    kind = f"GGUF {choice.name.label}" if choice.is_gguf else "safetensors"
    if choice.is_gguf and choice.name.label == choice.weights[0]:
        kind = "GGUF"
    if not repository.holds(choice):
        kind += ", incomplete"
    return LocalModel(str(choice.name), kind, tuple(path for path in files if path.is_file()), repository)
