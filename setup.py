"""Everything is in pyproject.toml; this file only refuses to build a tree whose links are broken."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup

FOLDERS = ("server", "scheduler", "model_runner", "tokenizer_mgr", "detokenizer")


def check_links(package: Path) -> None:
    """End the build with one sentence unless every folder is reachable inside ``package``.

    In a checkout they are links (``ebbtide/server -> ../server``), in an sdist real folders. A zip download, or git
    with ``core.symlinks=false``, leaves small text files instead, and the package would lack its parts in silence.
    """
    broken = [name for name in FOLDERS if not (package / name / "__init__.py").is_file()]
    if broken:
        names = ", ".join(f"ebbtide/{name}" for name in broken)
        raise SystemExit(
            f"ebbtide cannot be built from this tree: {names} must each be a symbolic link to the folder of the same "
            "name, so clone with git (core.symlinks=true) instead of downloading a zip file."
        )


check_links(Path(__file__).resolve().parent / "ebbtide")
setup()
