"""The memory limits of control groups, read from a fake /sys/fs/cgroup and /proc/self/cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.model_runner.kv.cgroup_limits import UNLIMITED, cgroup_room

GIB = 1 << 30
NO_LIMIT_V1 = 9223372036854771712
UNIT = "system.slice/ebbtide.service"


def machine(root: Path, own: str, files: dict[str, object]) -> Path:
    """A root folder with /proc/self/cgroup and files below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def v2(path: str, limit: object, used: int, **more: object) -> dict[str, object]:
    files = {"memory.max": limit, "memory.current": used} | {name.replace("_", ".", 1): v for name, v in more.items()}
    return {f"{path}/{name}": value for name, value in files.items()}


def v1(path: str, limit: int, used: int) -> dict[str, object]:
    return {f"memory/{path}/memory.limit_in_bytes": limit, f"memory/{path}/memory.usage_in_bytes": used}


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert cgroup_room(tmp_path) == UNLIMITED


def test_a_container_sees_its_own_limit_at_the_mount(tmp_path: Path) -> None:
    assert cgroup_room(machine(tmp_path, "0::/\n", v2("", 4 * GIB, GIB))) == 3 * GIB


def test_the_limit_of_a_systemd_unit_counts(tmp_path: Path) -> None:
    files = v2("system.slice", "max", 6 * GIB) | v2(UNIT, 2 * GIB, GIB // 2)
    assert cgroup_room(machine(tmp_path, f"0::/{UNIT}\n", files)) == 3 * GIB // 2


def test_the_smallest_free_memory_on_the_path_counts(tmp_path: Path) -> None:
    files = v2("system.slice", 8 * GIB, 7 * GIB) | v2(UNIT, 4 * GIB, GIB) | v2("user.slice", GIB, GIB)
    assert cgroup_room(machine(tmp_path, f"0::/{UNIT}\n", files)) == GIB


def test_memory_high_counts_too(tmp_path: Path) -> None:
    files = v2(UNIT, "max", GIB, memory_high=3 * GIB)
    assert cgroup_room(machine(tmp_path, f"0::/{UNIT}\n", files)) == 2 * GIB


def test_reclaimable_page_cache_counts_as_free(tmp_path: Path) -> None:
    files = v2("", 4 * GIB, 4 * GIB, memory_stat=f"anon 5\ninactive_file {3 * GIB}\nactive_file 7")
    assert cgroup_room(machine(tmp_path, "0::/\n", files)) == 3 * GIB


@pytest.mark.parametrize("own", [f"0::/{UNIT}\n", "0::/../../elsewhere\n", "0::/docker/0123abcd\n"])
def test_a_path_that_is_not_below_the_mount_leaves_the_mount(own: str, tmp_path: Path) -> None:
    assert cgroup_room(machine(tmp_path, own, v2("", 2 * GIB, GIB))) == GIB


def test_version_1_is_read(tmp_path: Path) -> None:
    own = f"12:cpu,cpuacct:/other\n7:memory:/{UNIT}\n1:name=systemd:/{UNIT}\n"
    files = v1("", NO_LIMIT_V1, GIB) | v1(UNIT, 3 * GIB, GIB) | v1("other", GIB, GIB)
    assert cgroup_room(machine(tmp_path, own, files)) == 2 * GIB


def test_with_both_versions_mounted_the_smaller_counts(tmp_path: Path) -> None:
    own = f"7:memory:/{UNIT}\n0::/{UNIT}\n"
    assert cgroup_room(machine(tmp_path, own, v1(UNIT, NO_LIMIT_V1, GIB))) == UNLIMITED
    (tmp_path / f"sys/fs/cgroup/memory/{UNIT}/memory.limit_in_bytes").write_text(str(2 * GIB))
    assert cgroup_room(tmp_path) == GIB


def test_use_above_the_limit_leaves_no_memory(tmp_path: Path) -> None:
    assert cgroup_room(machine(tmp_path, "0::/\n", v2("", GIB, 2 * GIB))) == 0
