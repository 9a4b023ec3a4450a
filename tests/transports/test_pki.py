"""The files of `thalweg pki`: their content, who may read them, and that they fit together."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path
from typing import get_type_hints

import pytest

from thalweg.cli.pki import issue as issue_command
from thalweg.cli.pki import revoke as revoke_command
from thalweg.errors import LinkError, PlanError
from thalweg.transports import pki


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pki.init(tmp_path / "pki", ["127.0.0.1", "example.org"], 30)
    return tmp_path / "pki"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_init_makes_six_files_and_guards_the_private_ones(folder: Path) -> None:
    modes = {path.name: mode(path) for path in folder.iterdir()}
    public = {"ca.crt": 0o644, "server.crt": 0o644, "issuer.pub": 0o644}
    assert modes == {**public, "ca.key": 0o600, "server.key": 0o600, "secret": 0o600}
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
    assert (token.role, token.issuer) == ("client", (folder / "issuer.pub").read_text().strip())
    assert len(bytes.fromhex(token.token)) == 96
    assert paths[2].read_text().splitlines()[:3] == ["thalweg token 2", "name = anna", "role = client"]


@pytest.mark.parametrize("role", pki.ROLES)
def test_a_token_and_a_certificate_name_their_role(folder: Path, role: str) -> None:
    certificate, _, token = pki.issue(folder, "anna", 30, role=role)
    assert pki.read_token(token).role == role
    decoded = ssl._ssl._test_decode_cert(str(certificate))  # type: ignore[attr-defined]
    subject = dict(entry[0] for entry in decoded["subject"])
    assert (subject["commonName"], subject["organizationalUnitName"]) == ("anna", role)


def test_the_help_names_each_role() -> None:
    option = get_type_hints(issue_command, include_extras=True)["role"].__metadata__[0]
    assert [role for role in pki.ROLES if role not in option.help] == []


def test_roles_that_are_none_and_hosts_of_nobody_are_refused(folder: Path) -> None:
    with pytest.raises(PlanError, match="no role 'king'"):
        pki.issue(folder, "anna", 30, role="king")
    with pytest.raises(PlanError, match="nobody connects to a client") as caught:
        pki.issue(folder, "anna", 30, hosts=["anna.example"])
    assert "tree-node or graph-node" in caught.value.hint
    assert not (folder / "anna.crt").exists()


def test_a_token_of_an_earlier_release_is_refused_with_the_way_to_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "anna.token"
    path.write_text(f"thalweg token 1\nname = anna\ntoken = {'ab' * 32}\n")
    with pytest.raises(PlanError, match="earlier release, which names no role") as caught:
        pki.read_token(path)
    assert "thalweg pki issue NAME --role ROLE" in caught.value.hint


def test_a_folder_of_an_earlier_release_gets_its_issuer_with_the_first_new_token(folder: Path) -> None:
    before = (folder / "issuer.pub").read_text()
    (folder / "issuer.pub").unlink()
    pki.issue(folder, "anna", 30)
    assert (folder / "issuer.pub").read_text() == before


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


@pytest.mark.parametrize("text", ["", "thalweg token 2\n", "thalweg token 2\nname = a\ntoken = b\n", "name = a"])
def test_what_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.token"
    path.write_text(text)
    with pytest.raises(PlanError, match="not a token"):
        pki.read_token(path)


def test_both_sides_of_a_link_trust_each_other(folder: Path) -> None:
    """Python's TLS library accepts the certificate chain, the server's address and the client's certificate."""
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


def test_renewal_keeps_name_role_and_hosts(folder: Path) -> None:
    pki.issue(folder, "west", 5, hosts=["10.0.0.7", "west.example"], role="tree-node")
    old = pki.Certificate.read(folder / "west.crt")
    key = (folder / "west.key").read_text()
    pki.renew(folder, "west", 50)
    new = pki.Certificate.read(folder / "west.crt")
    assert (new.name, new.role, list(new.hosts)) == ("west", "tree-node", ["10.0.0.7", "west.example"])
    assert new.not_after - old.not_after > 44 * 86_400
    assert (folder / "west.key").read_text() != key
    assert [mode(folder / f"west.{kind}") for kind in ("crt", "key")] == [0o644, 0o600]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "west.crt", folder / "west.key")  # raises if they do not belong together
    assert not list(folder.glob(".*"))
    assert pki.renewable(folder) == ["server", "west"]


def test_what_cannot_be_renewed_stays(folder: Path) -> None:
    before = (folder / "ca.crt").read_text()
    for name, why in (("ca", "not a certificate of ca"), ("nobody", "cannot read")):
        with pytest.raises(PlanError, match=why):
            pki.renew(folder, name, 5)
    assert (folder / "ca.crt").read_text() == before


def test_only_certificates_of_the_authority_are_renewed(folder: Path, tmp_path: Path) -> None:
    pki.init(tmp_path / "other", ["evil.example"], 30)
    (tmp_path / "other" / "server.crt").replace(folder / "server.crt")
    with pytest.raises(PlanError, match="not a certificate of this authority"):
        pki.renew(folder, "server", 5)
    assert list(pki.Certificate.read(folder / "server.crt").hosts) == ["evil.example"]


def test_parties_that_are_revoked_at_the_same_time_are_all_on_the_list(folder: Path) -> None:
    names = [f"client-{number}" for number in range(40)]
    threads = [threading.Thread(target=pki.revoke, args=(folder, name, "client")) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(pki.revoked(folder)) == {("client", name) for name in names}
    assert not list(folder.glob(".*"))


def test_a_line_without_its_end_stays_a_line(folder: Path) -> None:
    (folder / pki.REVOKED).write_text("client anna")
    pki.revoke(folder, "bob", "client")
    assert set(pki.revoked(folder)) == {("client", "anna"), ("client", "bob")}


def test_a_list_is_read_as_far_as_servers_read_it_and_no_longer(folder: Path) -> None:
    line = f"client {'a' * 100}\n"
    path = folder / pki.REVOKED
    path.write_text(line * ((3 << 20) // len(line)) + "client anna\n")
    assert ("client", "anna") in pki.revoked(folder)
    path.write_text(line * (pki.LARGEST_LIST // len(line)))
    with pytest.raises(PlanError, match="would have more than"):
        pki.revoke(folder, "b" * 100, "client")
    path.write_text(line * (pki.LARGEST_LIST // len(line) + 1))
    with pytest.raises(PlanError, match="has more than"):
        pki.revoked(folder)


def test_a_party_is_revoked_in_one_role(folder: Path) -> None:
    path = pki.revoke(folder, "anna", "client")
    pki.revoke(folder, "berta", "tree-node")
    assert [line.split()[:2] for line in path.read_text().splitlines()[1:]] == [
        ["client", "anna"],
        ["tree-node", "berta"],
    ]
    assert mode(path) == 0o600
    assert set(pki.revoked(folder)) == {("client", "anna"), ("tree-node", "berta")}
    with pytest.raises(PlanError, match="anna was revoked as client"):
        pki.issue(folder, "anna", 5)
    pki.issue(folder, "anna", 5, role="task-member")


@pytest.mark.parametrize(
    ("name", "role"), [("anna", "king"), ("a b", "client"), ("anna", "graph-node"), ("a", "forward")]
)
def test_what_cannot_be_revoked_is_refused(folder: Path, name: str, role: str) -> None:
    with pytest.raises(PlanError):
        pki.revoke(folder, name, role)
    assert not (folder / pki.REVOKED).exists()


def test_only_an_authority_revokes(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read"):
        pki.revoke(tmp_path, "anna", "client")


def test_a_party_is_revoked_in_the_role_of_its_files(folder: Path) -> None:
    pki.issue(folder, "tim", 5, role="task-member")
    pki.issue(folder, "west", 5, role="tree-node")
    (folder / "west.crt").unlink()
    for name in ("tim", "west"):
        revoke_command(name, folder=folder)
    assert set(pki.revoked(folder)) == {("task-member", "tim"), ("tree-node", "west")}


def test_a_name_that_was_never_issued_is_revoked_only_with_a_role(folder: Path) -> None:
    with pytest.raises(PlanError, match=r"has no zoe\.crt and no zoe\.token") as refused:
        revoke_command("zoe", folder=folder)
    assert "--role" in refused.value.hint
    assert not (folder / pki.REVOKED).exists()
    revoke_command("zoe", folder=folder, role="client")
    assert set(pki.revoked(folder)) == {("client", "zoe")}


def test_files_of_different_roles_are_revoked_only_with_a_role(folder: Path) -> None:
    pki.issue(folder, "anna", 5)
    (folder / "anna.token").unlink()
    pki.issue(folder, "anna", 5, folder / "new", role="tree-node")
    (folder / "new" / "anna.token").replace(folder / "anna.token")
    with pytest.raises(PlanError, match="as client and as tree-node"):
        pki.role_of(folder, "anna")


@pytest.mark.parametrize("name", ["../pki/anna", "a b", ""])
def test_a_role_is_not_looked_up_outside_the_folder(folder: Path, name: str) -> None:
    pki.issue(folder, "anna", 5)
    with pytest.raises(PlanError, match="cannot be a name"):
        pki.role_of(folder, name)
