"""The contents of a wheel and an sdist, and the build of a broken checkout. Builds in a copy, without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("server", "scheduler", "model_runner", "tokenizer_mgr", "detokenizer")
SHIPPED = {".py", ".cpp", ".cu", ".json", ".jinja", ".typed", ".js", ".css", ".txt", ""}
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")


def copy_of_tree(target: Path) -> Path:
    """The files that a build reads, links kept as links."""
    target.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    for name in ("ebbtide", *FOLDERS):
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return target


def build_sdist(tree: Path, target: Path) -> subprocess.CompletedProcess[str]:
    script = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(target)]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def build_wheel(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [*PIP, "wheel", *OFFLINE, "--wheel-dir", str(target), str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def only_file(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_tree(tmp_path_factory.mktemp("tree") / "ebbtide")


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    built = build_wheel(tree, target)
    assert built.returncode == 0, built.stderr
    return only_file(target, "*.whl")


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("sdist")
    built = build_sdist(tree, target)
    assert built.returncode == 0, built.stderr
    return only_file(target, "*.tar.gz")


def shipped_files(tree: Path) -> set[str]:
    """Every file of the package as a path under ``ebbtide/``, links followed one level."""
    places = [("ebbtide", tree / "ebbtide")] + [(f"ebbtide/{name}", tree / name) for name in FOLDERS]
    return {
        f"{place}/{path.relative_to(folder).as_posix()}"
        for place, folder in places
        for path in folder.rglob("*")
        if path.is_file() and path.suffix in SHIPPED
    }


def wheel_files(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_contains_only_ebbtide_at_the_top(wheel: Path) -> None:
    top = {name.split("/")[0] for name in wheel_files(wheel)}
    assert {name for name in top if not name.endswith(".dist-info")} == {"ebbtide"}


def test_wheel_holds_every_file_of_the_package(wheel: Path, tree: Path) -> None:
    assert shipped_files(tree) - wheel_files(wheel) == set()
    assert "ebbtide/py.typed" in wheel_files(wheel)


def test_wheel_holds_the_five_folders_and_the_licence(wheel: Path) -> None:
    names = wheel_files(wheel)
    assert {f"ebbtide/{name}/__init__.py" for name in FOLDERS} <= names
    assert any(name.endswith("LICENSE") for name in names)


def test_sdist_folders_are_real(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    inside = {member.name.split("/", 1)[1] for member in members if member.isfile()}
    assert {f"ebbtide/{name}/__init__.py" for name in FOLDERS} <= inside
    assert "setup.py" in inside
    assert not {name for name in inside if name.split("/")[0] in FOLDERS}


def test_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    built = build_wheel(sdist, tmp_path)
    assert built.returncode == 0, built.stderr
    assert wheel_files(only_file(tmp_path, "*.whl")) == wheel_files(wheel)


def test_sdist_installs_and_imports(sdist: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [*PIP, "install", *OFFLINE, "--target", str(site), str(sdist)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    script = "import ebbtide; print(ebbtide.__file__)\n" + "\n".join(f"import ebbtide.{name}" for name in FOLDERS)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    # -P: ignore the working folder, in which a checkout would be found instead.
    command = [sys.executable, "-P", "-c", script]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == str(site / "ebbtide" / "__init__.py")
    assert not [name for name in FOLDERS if (site / name).exists()]


@pytest.mark.parametrize("kind", ["missing", "plain file"])
def test_broken_link_ends_the_build_with_a_sentence(kind: str, tmp_path: Path) -> None:
    tree = copy_of_tree(tmp_path / "tree")
    link = tree / "ebbtide" / "scheduler"
    link.unlink()
    if kind == "plain file":
        link.write_text("../scheduler")  # what git writes with core.symlinks=false
    for built in (build_sdist(tree, tmp_path), build_wheel(tree, tmp_path)):
        assert built.returncode != 0
        assert "ebbtide/scheduler must each be a symbolic link" in built.stderr + built.stdout
    assert not list(tmp_path.glob("*.whl")) + list(tmp_path.glob("*.tar.gz"))


def test_editable_install_shows_only_ebbtide(tree: Path, tmp_path: Path) -> None:
    command = [*PIP, "install", *OFFLINE, "--target", str(tmp_path), "--editable", str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    paths = [path.read_text() for path in tmp_path.glob("*.pth")]
    # A plain path line would put the checkout itself on sys.path, and `import server` would find our folder.
    assert paths
    assert all(line.startswith("import ") for text in paths for line in text.splitlines())


@pytest.mark.parametrize("name", ["ebbtide.commands", *(f"ebbtide.{name}" for name in FOLDERS)])
def test_package_is_found_by_tools_that_only_look_for_it(name: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", f"import importlib.util as u; assert u.find_spec({name!r}).submodule_search_locations"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
