#!/usr/bin/env python3
"""Copy the pinned files of Swagger UI into the folder from which the daemon serves them at /docs/.

The command ``npm`` downloads the package. To update it, change VERSION, run this script, and enter the checksums that
its error message prints after you have compared them with the release.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    from npm_package import copy_pinned

    copy_pinned(f"swagger-ui-dist@{VERSION}", {name: name for name in SHA256}, SHA256, FOLDER)
