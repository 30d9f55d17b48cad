"""The local cache of Hub models, in the layout that all Hugging Face libraries share. Does not use the network.

The module does not import huggingface_hub, which takes half a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import StartupError
from ..tokenization.model_files import ModelFiles
from .names import Choice, HubName, choose, gguf_models

PREFIX = "models--"
INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")


def hub_cache_dir() -> Path:
    """Return the folder of Hub models: $HF_HUB_CACHE, $HF_HOME/hub, or ``huggingface/hub`` in the user's cache."""
    for variable, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser() / below
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface" / "hub"


@dataclass(frozen=True, slots=True)
class CachedRepository:
    """A repository in the cache.

    Attributes:
        folder: its folder, with the subfolders blobs, refs and snapshots.
        snapshot: folder with the files of the newest fetched revision; None if no revision was fetched.
    """

    repository: str
    folder: Path
    snapshot: Path | None

    @property
    def paths(self) -> list[str]:
        """The sorted paths of the snapshot's files, relative to the snapshot."""
        if self.snapshot is None:
            return []
        return sorted(path.relative_to(self.snapshot).as_posix() for path in self.snapshot.rglob("*") if path.is_file())

    @property
    def unfinished(self) -> list[Path]:
        """The partial files of interrupted downloads."""
        return sorted((self.folder / "blobs").glob("*.incomplete"))

    def find(self, name: HubName) -> Choice | None:
        """Return the files that ``name`` selects; None if the cache does not hold all of them."""
        try:
            choice = choose(name, self.paths)
        except StartupError:
            return None
        return choice if self.holds(choice) else None

    def holds(self, choice: Choice) -> bool:
        """Return True if every file of the choice is in the snapshot."""
        assert self.snapshot is not None
        needed = set(choice.weights) if choice.is_gguf else set(choice.weights) | _indexed(self.snapshot)
        has_tokenizer = choice.is_gguf or any((self.snapshot / name).is_file() for name in TOKENIZERS)
        return has_tokenizer and all((self.snapshot / path).is_file() for path in needed)

    def models(self) -> Iterator[Choice]:
        """Yield the models of which the snapshot has at least one file: first safetensors, then each GGUF model."""
        for name in [None, *gguf_models(self.paths)]:
            with contextlib.suppress(StartupError):
                choice = choose(HubName(self.repository, name), self.paths)
                if choice.is_gguf == (name is not None):
                    yield choice

    def files_of(self, choice: Choice) -> ModelFiles:
        """Return the location of a choice that the cache holds."""
        assert self.snapshot is not None
        if not choice.is_gguf:
            return ModelFiles(str(choice.name), str(self.snapshot))
        first = self.snapshot / choice.weights[0]
        return ModelFiles(str(choice.name), str(first.parent), first.name)

    def touch(self, choice: Choice) -> None:
        """Set the access times of the weight files to now. Does nothing if the cache is read-only."""
        assert self.snapshot is not None
        for file in [self.snapshot / path for path in choice.weights]:
            with contextlib.suppress(OSError):
                os.utime(file, ns=(time.time_ns(), file.stat().st_mtime_ns))


def cached_repositories() -> list[CachedRepository]:
    """Return the model repositories in the cache, sorted by name."""
    found = [folder for folder in hub_cache_dir().glob(f"{PREFIX}*") if folder.is_dir()]
    return [_repository(folder) for folder in sorted(found)]


def cached_repository(repository: str) -> CachedRepository:
    """Return one repository of the cache. Its folder need not exist."""
    return _repository(hub_cache_dir() / (PREFIX + repository.replace("/", "--")))


def find_cached(name: HubName) -> ModelFiles | None:
    """Return the location of a completely downloaded model and update its access time; None if it is not complete."""
    cached = cached_repository(name.repository)
    choice = cached.find(name)
    if choice is None:
        return None
    cached.touch(choice)
    return cached.files_of(choice)


def _repository(folder: Path) -> CachedRepository:
    name = folder.name.removeprefix(PREFIX).replace("--", "/", 1)
    return CachedRepository(name, folder, _snapshot(folder))


def _snapshot(folder: Path) -> Path | None:
    """Return the snapshot of the branch ``main``; the newest one if ``main`` was not fetched; None if there is none."""
    with contextlib.suppress(OSError):
        snapshot = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
        if snapshot.is_dir():
            return snapshot
    snapshots = [path for path in folder.glob("snapshots/*") if path.is_dir()]
    return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)


def _indexed(snapshot: Path) -> set[str]:
    """Return the names of the files that the index of split safetensors lists; empty without a valid index."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return set(json.loads((snapshot / INDEX).read_text())["weight_map"].values())
    return set()
