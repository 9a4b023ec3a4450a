"""Folders at well-known paths: no other user can redirect this user to another folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from thalweg.job.common.core_shares import CoreShare
from thalweg.machine.private import open_private

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make files of other users")
STRANGER = 65_534


def opened(path: Path, *, make: bool = True) -> str:
    folder = open_private(path, make=make)
    try:
        return str(Path(f"/proc/self/fd/{folder}").readlink())
    finally:
        os.close(folder)


def test_it_is_made_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "thalweg" / "seats"
    assert opened(path) == opened(path) == str(path)
    assert [part.stat().st_mode & 0o777 for part in (path, path.parent)] == [0o700, 0o700]


def test_it_may_lie_behind_a_link_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert opened(tmp_path / "link" / "own") == str(tmp_path / "real" / "own")


def test_a_missing_folder_is_made_only_if_asked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "none" / "seats", make=False)
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "seats").symlink_to("target")
    with pytest.raises(OSError, match=r"Not a directory|symbolic link"):
        opened(tmp_path / "seats")


@pytest.mark.parametrize("part", ["thalweg", "thalweg/seats"])
def test_where_others_can_write_it_is_refused(tmp_path: Path, part: str) -> None:
    (tmp_path / "thalweg" / "seats").mkdir(parents=True)
    (tmp_path / part).chmod(0o777)
    with pytest.raises(PermissionError, match="others can write"):
        opened(tmp_path / "thalweg" / "seats")


def test_a_folder_below_a_sticky_folder_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    assert opened(tmp_path / "shared" / "own") == str(tmp_path / "shared" / "own")


@ROOT
@pytest.mark.parametrize("part", ["thalweg", "thalweg/seats"])
def test_a_part_of_another_user_is_refused(tmp_path: Path, part: str) -> None:
    (tmp_path / "thalweg" / "seats").mkdir(parents=True)
    os.chown(tmp_path / part, STRANGER, STRANGER)
    with pytest.raises(PermissionError, match="another user's"):
        opened(tmp_path / "thalweg" / "seats")


@ROOT
def test_a_stranger_cannot_have_files_removed(tmp_path: Path) -> None:
    """A stranger makes the folder at the well-known path first. Its entry `seats` is a link to a folder of root."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "seat-1").write_text("kept")
    (tmp_path / "thalweg-0").mkdir()
    (tmp_path / "thalweg-0" / "seats").symlink_to(tmp_path / "precious")
    os.chown(tmp_path / "thalweg-0", STRANGER, STRANGER)
    with CoreShare(tmp_path / "thalweg-0" / "seats") as share:
        assert share.threads() >= 1
        assert "another user's" in (share.why_alone or "")
    assert (tmp_path / "precious" / "seat-1").read_text() == "kept"
