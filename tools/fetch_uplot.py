#!/usr/bin/env python3
"""Copy the pinned files of uPlot, the console's chart library, into the folder from which the daemon serves them.

The command ``npm`` downloads the package. To update it, change VERSION, run this script, and enter the checksums that
its error message prints after you have compared them with the release.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    from npm_package import copy_pinned

    copy_pinned(f"uplot@{VERSION}", SOURCES, SHA256, FOLDER)
