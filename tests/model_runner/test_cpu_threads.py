"""The number of threads at the start: the flag, the environment, the cores and the quotas of control groups."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
import torch

from ebbtide.model_runner.cpu_threads import choose_threads, cpu_quota


@pytest.mark.parametrize(
    ("cores", "quota", "count", "reason"),
    [
        (1, inf, 1, "the usable cores"),
        (4, inf, 4, "the usable cores"),
        (5, inf, 4, "the usable cores except one"),
        (64, inf, 63, "the usable cores except one"),
        (8, 2.5, 2, "the control group's quota"),
        (8, 0.5, 1, "the control group's quota"),
        (2, 16.0, 2, "the usable cores"),
        (32, 16.0, 15, "the control group's quota except one"),
    ],
)
def test_the_number_follows_from_what_the_process_may_use(cores: int, quota: float, count: int, reason: str) -> None:
    choice = choose_threads(0, {}, cores, quota)
    assert (choice.count, choice.adapts) == (count, True)
    assert choice.reason == f"{reason}, fewer while they are busy"


def test_a_number_that_is_asked_for_is_fixed() -> None:
    choice = choose_threads(3, {"OMP_NUM_THREADS": "1"}, 8, inf)
    assert (choice.count, choice.adapts, choice.reason) == (3, False, "--num-threads")
    choice = choose_threads(0, {"OMP_NUM_THREADS": "1"}, 8, inf)
    assert (choice.count, choice.adapts) == (torch.get_num_threads(), False)


def group(root: Path, membership: str, **files: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_max", ".max").replace("_cfs", ".cfs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/a/b\n", {"a__b__cpu_max": "250000 100000\n", "a__cpu_max": "max 100000\n"}, 2.5),
        ("0::/a/b\n", {"a__b__cpu_max": "max 100000\n", "a__cpu_max": "100000 100000\n"}, 1.0),
        ("0::/../host\n", {"cpu_max": "50000 100000\n"}, 0.5),
        (
            "3:cpu,cpuacct:/x\n2:memory:/y\n",
            {"cpu__x__cpu_cfs_quota_us": "300000", "cpu__x__cpu_cfs_period_us": "100000"},
            3.0,
        ),
        ("3:cpu:/x\n", {"cpu__x__cpu_cfs_quota_us": "-1", "cpu__x__cpu_cfs_period_us": "100000"}, inf),
        ("0::/a\n", {"a__cpu_max": "nonsense"}, inf),
        ("", {}, inf),
    ],
)
def test_the_quota_is_the_smallest_of_the_group_and_its_parents(
    membership: str, files: dict[str, str], quota: float, tmp_path: Path
) -> None:
    assert cpu_quota(group(tmp_path, membership, **files)) == quota


def test_a_system_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) == inf
