#!/usr/bin/env python3
"""Copy the pinned files of uPlot, the console's chart library, into the folder from which the daemon serves them.

The command ``npm`` downloads the package. To update it, change VERSION, run this script, and enter the checksums that
its error message prints after you have compared them with the release.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "1.6.32"
FOLDER = Path(__file__).resolve().parent.parent / "server" / "console" / "static" / "vendor"
SOURCES = {  # name here -> name in the package
    "uPlot.iife.min.js": "dist/uPlot.iife.min.js",
    "uPlot.min.css": "dist/uPlot.min.css",
    "uPlot.LICENSE.txt": "LICENSE",
}
SHA256 = {
    "uPlot.LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def files_of(archive: Path) -> dict[str, bytes]:
    """Return the files of an npm package that are named in SOURCES."""
    with tarfile.open(archive) as package:
        members = {name: package.extractfile(f"package/{source}") for name, source in SOURCES.items()}
        return {name: member.read() for name, member in members.items() if member is not None}


def main() -> None:
    """Download, check and write the files. Exits with a message, and writes nothing, if a checksum differs."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, f"uplot@{VERSION}"]
        subprocess.run(command, check=True)
        files = files_of(next(Path(folder).glob("*.tgz")))
    found = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    if found != SHA256:
        sys.exit(f"The checksums of uplot {VERSION} are not those of this script: {found}")
    FOLDER.mkdir(exist_ok=True)
    for name, content in files.items():
        (FOLDER / name).write_bytes(content)
    print(f"{len(files)} files of uplot {VERSION} are in {FOLDER}.")


if __name__ == "__main__":
    main()
