"""Downloads models from the Hub into the cache that all Hugging Face libraries share.

huggingface_hub lists repositories, fetches the small files and links the large files into the snapshot. The weights are
downloaded by ``Transfer``, because huggingface_hub starts an interrupted download from the beginning and does not
verify checksums. huggingface_hub is imported only when a model has to be fetched.
"""

from __future__ import annotations

import glob
import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import StartupError
from ..runtime.file_lock import only_one
from ..tokenization.model_files import ModelFiles
from .cache import cached_repository, find_cached, hub_cache_dir
from .failures import connection_errors, endpoint, translated
from .names import Choice, HubName, choose
from .transfer import PAUSE_S, LargeFile, Transfer

log = logging.getLogger(__name__)
BRANCH = "main"


def resolve_hub_model(name: HubName) -> ModelFiles:
    """Return the files of a Hub model. Uses the network only if the cache does not hold all of them.

    Raises StartupError if the model does not exist or cannot be downloaded.
    """
    return find_cached(name) or fetch(name)


def fetch(name: HubName, *, pause_s: float = PAUSE_S) -> ModelFiles:
    """Download the missing files of a model's newest revision, and return the location of the model in the cache.

    pause_s: seconds before a broken connection is opened again.
    Raises StartupError if the model does not exist or cannot be downloaded.
    """
    with translated(name):
        return _Hub(pause_s).fetch(name)


class _Hub:
    """The Hub at $HF_ENDPOINT."""

    def __init__(self, pause_s: float) -> None:
        from huggingface_hub import HfApi
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # huggingface_hub would show a bar for each small file
        self._api = HfApi(endpoint=endpoint())
        self._cache = hub_cache_dir()
        self._pause_s = pause_s

    def fetch(self, name: HubName) -> ModelFiles:
        info = self._api.model_info(name.repository, files_metadata=True)
        files = list(info.siblings or [])
        for file in files:
            _check_path(name, file.rfilename)
        choice = choose(name, [file.rfilename for file in files])
        if choice.name != name:
            log.info("%s means %s", name, choice.name)
        self._snapshot(name, choice.others)
        self._transfer(choice, [_large(file) for file in files if file.rfilename in choice.weights and file.lfs])
        self._snapshot(name, [*choice.others, *choice.weights])
        cached = cached_repository(name.repository)
        found = cached.find(choice.name)
        if found is None:
            raise StartupError(f"The download of {choice.name} is incomplete: its index names files that do not exist.")
        cached.touch(found)
        return cached.files_of(found)

    def _snapshot(self, name: HubName, paths: Sequence[str]) -> None:
        """Fetch these files with huggingface_hub, which only links a file whose content is already in the cache."""
        if paths:
            self._api.snapshot_download(
                name.repository,
                revision=BRANCH,
                cache_dir=self._cache,
                allow_patterns=[glob.escape(path) for path in paths],
            )

    def _transfer(self, choice: Choice, files: Sequence[LargeFile]) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        blobs = cached_repository(choice.name.repository).folder / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        transfer = Transfer(get_session(), hf_raise_for_status, connection_errors(), _bar, self._pause_s)
        with only_one(blobs.parent / ".ebbtide.lock", "another process that downloads from the same repository"):
            missing = [file for file in files if not (blobs / file.sha256).exists()]
            _require_space(missing, blobs)
            for file in missing:
                url = hf_hub_url(choice.name.repository, file.path, revision=BRANCH, endpoint=self._api.endpoint)
                transfer.fetch(file, url, build_hf_headers(), blobs)


def _check_path(name: HubName, path: object) -> None:
    """Raise StartupError if a path that the Hub lists leads out of the repository."""
    if not isinstance(path, str) or PurePosixPath(path).is_absolute() or ".." in re.split(r"[/\\]", path):
        raise StartupError(f"The repository {name.repository} lists {path!r}, which is not a path of a file in it.")


def _large(sibling: Any) -> LargeFile:
    """Convert an entry of the Hub's file list. Raises StartupError if its size or SHA-256 is not valid."""
    size, sha256 = sibling.lfs.size, sibling.lfs.sha256
    if not isinstance(size, int) or size < 0 or not re.fullmatch("[0-9a-f]{64}", str(sha256)):
        raise StartupError(f"The Hub at {endpoint()} gives no valid size or SHA-256 for the file {sibling.rfilename}.")
    return LargeFile(sibling.rfilename, size, sha256)


def _bar(file: LargeFile, start: int) -> Any:
    """Return a progress bar on stderr that starts at ``start`` bytes. It shows nothing if stderr is not a terminal."""
    from tqdm import tqdm

    log.info("downloading %s (%.1f MB)", file.path, file.size / 1e6)
    name = file.path.rpartition("/")[2]
    return tqdm(desc=name, total=file.size, initial=start, unit="B", unit_scale=True, disable=None)


def _require_space(missing: Sequence[LargeFile], blobs: Path) -> None:
    needed = sum(file.size for file in missing)
    present = sum(part.stat().st_size for file in missing if (part := blobs / f"{file.sha256}.incomplete").exists())
    free = shutil.disk_usage(blobs).free
    if needed - present > free:
        raise StartupError(
            f"The disk of {blobs} is too full: the download needs {(needed - present) / 1e9:.2f} GB, and "
            f"{free / 1e9:.2f} GB are free. Free some space, or set HF_HUB_CACHE to a folder on another disk."
        )
