"""``ebbtide rm``: deletes a downloaded model."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from pathlib import Path

from ebbtide.runtime.daemon_record import DaemonRecord, living_records

from ...errors import StartupError
from ..table import size_text
from .local_models import LocalModel, local_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``ebbtide rm``."""
    parser.add_argument("name", metavar="NAME", help="model name, as ebbtide list prints it")
    parser.add_argument("-y", "--yes", action="store_true", help="delete without asking for confirmation")


def run(arguments: argparse.Namespace) -> int:
    """Delete a model. Returns 1 if the user does not confirm, else 0.

    Raises StartupError if there is no such model, a running server uses it, or it cannot be deleted.
    """
    model = local_model(arguments.name)
    for record in living_records():
        if _uses(record, model):
            raise StartupError(
                f"The server with process id {record.pid} serves {model.name}. Stop it first: kill {record.pid}"
            )
    if not arguments.yes and not _confirmed(model):
        print("Nothing was deleted.", file=sys.stderr)
        return 1
    freed = model.num_bytes
    try:
        _delete(model)
    except OSError as error:
        raise StartupError(f"{model.name} could not be deleted: {error.strerror}: {error.filename}.") from error
    print(f"Deleted {model.name} ({size_text(freed)}).")
    return 0


def _uses(record: DaemonRecord, model: LocalModel) -> bool:
    folder = Path(record.directory)
    used = {folder / record.gguf} if record.gguf else {path for path in model.files if path.parent == folder}
    return bool(record.directory) and any(path.absolute() in used or path.resolve() in used for path in model.files)


def _confirmed(model: LocalModel) -> bool:
    if not sys.stdin.isatty():
        raise StartupError(f"Give -y to delete {model.name} without confirmation.")
    print(f"Delete {model.name} ({size_text(model.num_bytes)}) of {model.files[0].parent}? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


def _delete(model: LocalModel) -> None:
    """Delete the model's files and their blobs; delete the whole repository if no other model remains in it."""
    contents = {path.resolve() for path in model.files}
    for path in model.files:
        path.unlink()
    repository = model.repository
    if repository is None:
        return
    kept = {path.resolve() for path in repository.folder.glob("snapshots/**/*") if path.is_file()}
    for path in contents - kept:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    if not repository.unfinished and not any(True for _ in repository.models()):
        shutil.rmtree(repository.folder)
        shutil.rmtree(repository.folder.parent / ".locks" / repository.folder.name, ignore_errors=True)
