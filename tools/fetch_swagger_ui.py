#!/usr/bin/env python3
"""Copy the pinned files of Swagger UI into the folder from which the daemon serves them at /docs/.

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

VERSION = "5.35.0"
FOLDER = Path(__file__).resolve().parent.parent / "server" / "http" / "swagger_ui"
SHA256 = {
    "LICENSE": "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30",
    "NOTICE": "0d20d1adef18aee3f40dd258172155521ce702ac445cb5f7b7d60ed32dad2fb2",
    "swagger-ui-bundle.js": "e6a898692f2d768e807c3ba4626068a69a2c5dd960dd6c76f3e4d3a3de180af2",
    "swagger-ui-bundle.js.LICENSE.txt": "37eb6e7e59aed57b2c1acf076574b818ea07b74265717e0bd67b59e0baf9abbb",
    "swagger-ui.css": "5ed08757e53da3e026d6cbecc61fe5d43585c9560b302d534ad56692519a273d",
}


def files_of(archive: Path) -> dict[str, bytes]:
    """Return the files of an npm package that are named in SHA256."""
    with tarfile.open(archive) as package:
        members = {name: package.extractfile(f"package/{name}") for name in SHA256}
        return {name: member.read() for name, member in members.items() if member is not None}


def main() -> None:
    """Download, check and write the files. Exits with a message, and writes nothing, if a checksum differs."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, f"swagger-ui-dist@{VERSION}"]
        subprocess.run(command, check=True)
        files = files_of(next(Path(folder).glob("*.tgz")))
    found = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    if found != SHA256:
        sys.exit(f"The checksums of swagger-ui-dist {VERSION} are not those of this script: {found}")
    FOLDER.mkdir(exist_ok=True)
    for name, content in files.items():
        (FOLDER / name).write_bytes(content)
    print(f"{len(files)} files of swagger-ui-dist {VERSION} are in {FOLDER}.")


if __name__ == "__main__":
    main()
