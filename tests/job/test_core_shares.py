"""How clients that were started separately share the machine's cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thalweg.apps.received_config import ReceivedConfig
from thalweg.job.common import core_shares
from thalweg.job.common.core_shares import CHOSEN, CoreShare, ThreadLimited, limited

HOLD = """
import sys
from pathlib import Path
from thalweg.job.common.core_shares import CoreShare
share = CoreShare(Path(sys.argv[1]))
print("here", flush=True)
input()
"""


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(("clients", "share"), [(1, 8), (2, 4), (3, 2), (8, 1), (9, 1)])
def test_the_cores_are_shared_by_all_that_are_here(tmp_path: Path, clients: int, share: int) -> None:
    held = [CoreShare(tmp_path) for _ in range(clients)]
    assert [one.threads() for one in held] == [share] * clients
    for one in held[1:]:
        one.close()
    assert held[0].threads() == 8, "whoever leaves gives its share back"
    held[0].close()
    held[0].close()
    assert list(tmp_path.iterdir()) == []


def test_only_who_wants_the_same_cores_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    with CoreShare(tmp_path) as low:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 6, 7})
        with CoreShare(tmp_path) as high:
            assert high.threads() == 4
            monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
            assert low.threads() == 4


def test_a_client_that_was_killed_has_no_share(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with CoreShare(tmp_path) as share:
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdout is not None
        other.stdout.readline()
        assert share.threads() == 4
        other.kill()
        other.communicate()
        assert share.threads() == 8
        assert len(list(tmp_path.iterdir())) == 1, "what it left is removed"


def test_foreign_files_in_the_folder_are_no_shares(tmp_path: Path) -> None:
    (tmp_path / "seat-noise").write_bytes(b"\xff 1 2")
    (tmp_path / "seat-folder").mkdir()
    (tmp_path / "seat-link").symlink_to("/etc/passwd")
    (tmp_path / ".part-begun").touch()
    with CoreShare(tmp_path) as share:
        assert share.threads() == 8
    assert not (tmp_path / "seat-noise").exists()
    assert Path("/etc/passwd").exists()


def test_without_a_folder_a_client_is_alone_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with CoreShare(tmp_path / "file" / "seats") as share:
        assert share.threads() == 8
        assert share.why_alone is not None
        assert "Not a directory" in share.why_alone


def test_each_user_has_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert core_shares.folder() == tmp_path / "thalweg" / "seats"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert core_shares.folder().parent.name == f"thalweg-{os.geteuid()}"


class Trained:
    """A party that stores how many threads it trains with."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.seen: list[int] = []

    def train(self, config: Any) -> tuple[int, dict[str, Any]]:
        self.seen.append(self.torch.get_num_threads())
        return 1, {}

    def evaluation(self, config: Any) -> dict[str, Any]:
        return {}

    def finish(self, samples: float, metrics: Any) -> tuple[float, Any]:
        return samples, metrics


def test_the_share_is_looked_up_for_each_round(tmp_path: Path) -> None:
    import torch

    before = torch.get_num_threads()
    party = Trained(torch)
    try:
        with CoreShare(tmp_path) as share:
            party_of_many = ThreadLimited(party, share.threads)
            party_of_many.train(ReceivedConfig())
            with CoreShare(tmp_path):
                party_of_many.train(ReceivedConfig())
            party_of_many.train(ReceivedConfig())
    finally:
        torch.set_num_threads(before)
    assert party.seen == [8, 4, 8]


def test_threads_that_somebody_chose_are_not_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(threads: int | None) -> Any:
        with CoreShare(tmp_path) as share:
            return limited(lambda _config, _arena: party, share, threads, print)(ReceivedConfig(), arena)

    party: Any = object()
    arena: Any = object()
    monkeypatch.setenv(CHOSEN, "3")
    assert made(None) is party, "the environment says it"
    assert made(2)._threads() == 2, "the command line says it"
    monkeypatch.delenv(CHOSEN)
    assert made(None)._threads() >= 1


def test_a_client_that_cannot_read_the_folder_gives_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHOSEN, raising=False)
    (tmp_path / "file").touch()
    heard: list[str] = []
    maker: Any = None
    with CoreShare(tmp_path / "file" / "seats") as share:
        limited(maker, share, None, heard.append)
        limited(maker, share, 1, heard.append)
    assert [text.partition(":")[0] for text in heard] == ["cannot see other clients on this machine"]
