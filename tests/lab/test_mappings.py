"""The host's limit of mappings while guests run, with files in place of the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg.lab.guest import mappings

BEFORE = "65530"
RAISED = str(mappings.NEEDED)


@pytest.fixture
def sysctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of the kernel's limit."""
    file = tmp_path / "limit"
    file.write_text(BEFORE + "\n")
    monkeypatch.setattr(mappings, "_LIMIT", file)
    monkeypatch.setattr(mappings, "_STATE", tmp_path / "state")
    return file


def test_the_limit_is_raised_for_the_block_and_the_user_is_told(sysctl: Path) -> None:
    notes: list[str] = []
    with mappings.raised(notes.append):
        assert sysctl.read_text() == RAISED
    assert sysctl.read_text() == BEFORE
    assert notes == [f"vm.max_map_count of this machine is {RAISED} until the guest ends; it was {BEFORE}"]


def test_it_is_put_back_after_an_error(sysctl: Path) -> None:
    with pytest.raises(RuntimeError), mappings.raised(print):
        raise RuntimeError
    assert sysctl.read_text() == BEFORE


def test_the_last_of_several_guests_puts_it_back(sysctl: Path) -> None:
    notes: list[str] = []
    first, second = mappings.raised(notes.append), mappings.raised(notes.append)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sysctl.read_text() == RAISED
    second.__exit__(None, None, None)
    assert sysctl.read_text() == BEFORE
    assert len(notes) == 1, "the second guest found it raised"


def test_the_next_guest_puts_it_back_for_one_that_was_killed(sysctl: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "max_map_count").write_text(BEFORE)
    sysctl.write_text(RAISED)
    with mappings.raised(print):
        assert sysctl.read_text() == RAISED
    assert sysctl.read_text() == BEFORE


def test_a_limit_that_somebody_changed_meanwhile_stays(sysctl: Path) -> None:
    with mappings.raised(print):
        sysctl.write_text("4000000")
    assert sysctl.read_text() == "4000000"


def test_a_limit_that_is_high_enough_stays(sysctl: Path, tmp_path: Path) -> None:
    sysctl.write_text("3000000")
    with mappings.raised(pytest.fail):
        assert sysctl.read_text() == "3000000"
    assert sysctl.read_text() == "3000000"
    assert not (tmp_path / "state").exists()


def test_without_the_right_to_raise_it_the_limit_stays(sysctl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "may_raise", lambda: False)
    with mappings.raised(pytest.fail):
        assert sysctl.read_text() == BEFORE + "\n"
