"""Finds the control groups (cgroup v1 and v2) of this process. The module does not depend on what they limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def own_groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the process's group and its parents, for every hierarchy with the controller.

    root: root of the file system. The second value is True for cgroup v1.
    """
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        # In a container, the path may be that of the host, which does not exist below the mount. The group is then the
        # mount itself.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for length in range(len(parts) + 1):
            yield mount.joinpath(*parts[:length]), bool(controllers)


def text_of(path: Path) -> str:
    """Return the contents of a file; "" if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
