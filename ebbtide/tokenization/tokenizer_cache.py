"""Caches tokenizers that transformers has loaded, so that a daemon does not import transformers at each start.

A tokenizer that is not in the cache is loaded by a separate process, because importing transformers takes 200 MiB. A
file of the cache contains the tokenizer in the format of tokenizer.json, and its settings.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import msgspec

from ..errors import StartupError
from .model_files import ModelFiles, cache_dir, one_line
from .tokenizer import FastTokenizer, TextTokenizer, load_parts, load_tokenizer
from .tokenizer_parts import TokenizerParts

log = logging.getLogger(__name__)
PATTERNS = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")  # files that transformers may read
REFUSED = 3  # exit code of the separate process after it has printed a one-sentence error message


class _Stored(msgspec.Struct, frozen=True):
    """``TokenizerParts`` in the form of a cache file: the backend is JSON in the format of tokenizer.json."""

    backend: str
    class_name: str
    special: dict[int, str]
    named: dict[str, str]
    chat_template: str | dict[str, str] | None
    eos_ids: list[int]


def load_cached_tokenizer(files: ModelFiles) -> TextTokenizer:
    """Load the tokenizer of a model without importing transformers in this process.

    Raises StartupError if a file is missing or invalid.
    """
    if files.simulated or files.gguf:
        return load_tokenizer(files)
    path = cache_dir() / "tokenizers" / f"{_key(Path(files.directory))}.msgpack"
    parts = _read(path) or _converted(files.directory, path)
    if parts is None:
        raise StartupError(f"The tokenizer in {files.directory} cannot be loaded: {path} cannot be read.")
    return FastTokenizer(parts)


def _key(directory: Path) -> str:
    """Return a hash of the libraries' versions and of the names and contents of the tokenizer's files."""
    digest = hashlib.sha256(repr([version(name) for name in ("ebbtide", "transformers", "tokenizers")]).encode())
    found = {path for pattern in PATTERNS for path in directory.glob(pattern)}
    for path in sorted(path for path in found if path.is_file()):
        content = path.read_bytes()
        digest.update(repr((path.name, len(content))).encode() + content)
    return digest.hexdigest()[:32]


def _read(path: Path) -> TokenizerParts | None:
    """Return the tokenizer in a cache file; None if the file does not exist or is damaged."""
    from tokenizers import Tokenizer

    try:
        stored = msgspec.msgpack.decode(path.read_bytes(), type=_Stored)
    except (OSError, msgspec.MsgspecError):
        return None
    return TokenizerParts(
        backend=Tokenizer.from_str(stored.backend),
        class_name=stored.class_name,
        special=stored.special,
        named=dict(stored.named),
        chat_template=stored.chat_template,
        eos_ids=frozenset(stored.eos_ids),
    )


def _converted(directory: str, path: Path) -> TokenizerParts | None:
    """Load the tokenizer in a separate process and cache it at ``path``.

    If ``path`` cannot be written, a warning is logged and the tokenizer is not cached.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        log.warning("the tokenizer is not cached: %s cannot be written: %s", path.parent, error.strerror)
        with tempfile.TemporaryDirectory() as folder:
            return _load_elsewhere(directory, Path(folder, path.name))
    return _load_elsewhere(directory, path)


def _load_elsewhere(directory: str, path: Path) -> TokenizerParts | None:
    """Load the tokenizer in a separate process, which writes it to ``path``, and return it from there."""
    command = [sys.executable, "-P", "-m", __name__, directory, str(path)]
    here = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]).rstrip(":")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == REFUSED:
        raise StartupError(done.stdout.strip())
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise StartupError(f"The tokenizer in {directory} cannot be loaded: {lines[-1][:300]}.")
    return _read(path)


def _write(parts: TokenizerParts, path: Path) -> None:
    """Write a cache file under a temporary name and rename it, because two daemons may start at the same time."""
    stored = _Stored(
        parts.backend.to_str(),
        parts.class_name,
        parts.special,
        {name: str(text) for name, text in parts.named.items()},
        parts.chat_template,
        sorted(parts.eos_ids),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(msgspec.msgpack.encode(stored))
    Path(file.name).replace(path)


def _main(directory: str, path: str) -> int:
    try:
        _write(load_parts(ModelFiles("", directory)), Path(path))
    except StartupError as error:
        print(error)
        return REFUSED
    except OSError as error:
        print(f"The folder of tokenizers {Path(path).parent} cannot be written: {one_line(error)}.")
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
