"""The files of `thalweg pki`: what is made, who may read it, that it holds together."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from thalweg.errors import LinkError, PlanError
from thalweg.transports import pki


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pki.init(tmp_path / "pki", ["127.0.0.1", "example.org"], 30)
    return tmp_path / "pki"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_init_makes_five_files_and_guards_the_private_ones(folder: Path) -> None:
    modes = {path.name: mode(path) for path in folder.iterdir()}
    assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "server.crt": 0o644, "server.key": 0o600, "secret": 0o600}
    assert mode(folder) == 0o700


def test_init_never_overwrites(folder: Path) -> None:
    before = (folder / "ca.key").read_text()
    with pytest.raises(PlanError, match="not overwritten"):
        pki.init(folder, ["127.0.0.1"], 30)
    assert (folder / "ca.key").read_text() == before


def test_issue_makes_a_token_that_reads_back(folder: Path, tmp_path: Path) -> None:
    paths = pki.issue(folder, "anna", 30, tmp_path / "out")
    assert [path.name for path in paths] == ["anna.crt", "anna.key", "anna.token"]
    assert [mode(path) for path in paths] == [0o644, 0o600, 0o600]
    token = pki.read_token(paths[2])
    assert token.name == "anna"
    assert token.authority == (folder / "ca.crt").read_text()
    assert len(bytes.fromhex(token.token)) == 32
    assert paths[2].read_text().splitlines()[:2] == ["thalweg token 1", "name = anna"]


def test_tokens_differ_by_name_and_repeat_for_one(folder: Path, tmp_path: Path) -> None:
    def token(name: str, place: str) -> str:
        return pki.read_token(pki.issue(folder, name, 30, tmp_path / place)[2]).token

    assert token("anna", "1") == token("anna", "2") != token("berta", "1")


def test_issue_never_overwrites(folder: Path) -> None:
    pki.issue(folder, "anna", 30)
    with pytest.raises(PlanError, match=r"anna\.crt is there already"):
        pki.issue(folder, "anna", 30)


@pytest.mark.parametrize("name", ["", "../anna", "a/b", ".anna", "a b", "server", "ca", "a" * 129])
def test_a_name_that_cannot_be(folder: Path, name: str) -> None:
    with pytest.raises(PlanError, match="name"):
        pki.issue(folder, name, 30)


def test_issue_without_init_names_it(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="thalweg pki init"):
        pki.issue(tmp_path, "anna", 30)


def test_a_token_that_others_may_read_is_refused(folder: Path) -> None:
    token = pki.issue(folder, "anna", 30)[2]
    token.chmod(0o644)
    with pytest.raises(LinkError, match="chmod 600"):
        pki.read_token(token)


@pytest.mark.parametrize("text", ["", "thalweg token 1\n", "thalweg token 2\nname = a\ntoken = b\n", "name = a"])
def test_what_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.token"
    path.write_text(text)
    with pytest.raises(PlanError, match="not a token"):
        pki.read_token(path)


def test_both_sides_of_a_link_trust_each_other(folder: Path) -> None:
    """Another TLS library accepts the chain, the server's address and the client's certificate."""
    certificate, key, _ = pki.issue(folder, "anna", 30)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    server.load_verify_locations(folder / "ca.crt")
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    client.load_cert_chain(certificate, key)
    here, there = socket.socketpair()
    seen: list[str] = []

    def serve() -> None:
        with server.wrap_socket(there, server_side=True) as link:
            subject = dict(entry[0] for entry in (link.getpeercert() or {})["subject"])  # type: ignore[misc]
            seen.append(str(subject["commonName"]))
            link.sendall(b"come in")

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(here, server_hostname="127.0.0.1") as link:
        assert link.recv(100) == b"come in"
    thread.join()
    assert seen == ["anna"]


def test_own_hosts_begin_with_loopback() -> None:
    assert pki.own_hosts()[:3] == ["localhost", "127.0.0.1", "::1"]
