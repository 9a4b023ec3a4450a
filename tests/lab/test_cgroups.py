"""Shares of a core: which numbers are written to which files, in both versions of cgroup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from thalweg.errors import LabError
from thalweg.lab import cgroups
from thalweg.lab.cgroups import Groups, Hierarchy


@pytest.mark.parametrize(
    ("share", "quota", "period"),
    [(0.2, 2000, 10_000), (1.0, 10_000, 10_000), (1.5, 15_000, 10_000), (0.1, 1000, 10_000), (0.01, 1000, 100_000)],
)
def test_the_period_is_ten_milliseconds_unless_the_quota_were_too_small(share: float, quota: int, period: int) -> None:
    assert cgroups.quota_of(share) == (quota, period)


def test_which_version_has_the_controller(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("cgroup /c/memory cgroup rw,memory 0 0\ncgroup /c/cpu cgroup rw,cpuacct,cpu 0 0\n")
    assert cgroups.detect(mounts) == Hierarchy(1, Path("/c/cpu"))
    mounts.write_text(f"proc /proc proc rw 0 0\ncgroup2 {tmp_path} cgroup2 rw 0 0\n")
    assert cgroups.detect(mounts) is None, "it is mounted, and has no cpu"
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io\n")
    assert cgroups.detect(mounts) == Hierarchy(2, tmp_path)
    assert cgroups.detect(tmp_path / "none") is None


def test_version_one(tmp_path: Path) -> None:
    groups = Groups({"client-1": 0.2}, Hierarchy(1, tmp_path))
    path = groups.path("client-1")
    assert path is not None
    assert (Path(path) / "cpu.cfs_period_us").read_text() == "10000"
    assert (Path(path) / "cpu.cfs_quota_us").read_text() == "2000"
    assert groups.path("client-2") is None
    assert groups.paths == [path]


def test_version_two(tmp_path: Path) -> None:
    groups = Groups({"client-1": 0.2}, Hierarchy(2, tmp_path))
    path = groups.path("client-1")
    assert path is not None
    assert (Path(path) / "cpu.max").read_text() == "2000 10000"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (Path(path).parent / "cgroup.subtree_control").read_text() == "+cpu"


def test_no_shares_need_nothing() -> None:
    with Groups({}) as groups:
        assert groups.paths == []


def test_without_a_controller_or_permission_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "detect", lambda: None)
    with pytest.raises(LabError, match="no cgroup with the cpu controller"):
        Groups({"client-1": 0.2})
    with pytest.raises(LabError, match="cannot make groups") as caught:
        Groups({"client-1": 0.2}, Hierarchy(1, tmp_path / "none"))
    assert "cpu_quota" in caught.value.hint


def test_only_what_the_dead_left_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from thalweg.lab.state import start_time

    monkeypatch.setattr(cgroups, "detect", lambda: Hierarchy(1, tmp_path))
    mine = f"thalweg-{os.getpid()}-{start_time(os.getpid())}"
    for name in (mine, f"thalweg-{os.getpid()}-1", "thalweg-me", "other"):
        (tmp_path / name / "client-1").mkdir(parents=True)
    (left,) = cgroups.left()
    assert left.name == f"thalweg-{os.getpid()}-1"
    cgroups.remove(left)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([mine, "thalweg-me", "other"])
