"""Trust of links: tokens, certificates, logins."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg.errors import LinkError
from thalweg.plan import Plan
from thalweg.transports import links, pki
from thalweg.transports.links import Identity, Tls, Trust


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("tcp://127.0.0.1:0", True),
        ("tcp://127.8.9.1:7", True),
        ("tcp://localhost:7", True),
        ("tcp://[::1]:7", True),
        ("memory://job", True),
        ("tcp://0.0.0.0:7", False),
        ("tcp://[::]:7", False),
        ("tcp://10.0.0.1:7", False),
        ("tcp://example.org:7", False),
    ],
)
def test_what_only_this_machine_can_reach(url: str, local: bool) -> None:
    assert links.is_local(url) is local


def test_a_server_others_can_reach_needs_a_pki_folder() -> None:
    with pytest.raises(LinkError, match="thalweg pki init"):
        links.server_trust(Plan.of({}).security, "tcp://0.0.0.0:7070")
    assert links.server_trust(Plan.of({}).security, "tcp://127.0.0.1:7070") == Trust()


def test_a_server_with_a_pki_folder_encrypts_and_asks_for_tokens_or_certificates(tmp_path: Path) -> None:
    pki.init(tmp_path / "pki", ["10.0.0.1"], 1)
    plan = Plan.of({"security": {"pki": str(tmp_path / "pki")}})
    trust = links.server_trust(plan.security, "tcp://10.0.0.1:7070")
    assert trust.issuer == (tmp_path / "pki" / "issuer.pub").read_text().strip()
    assert trust.tls is not None
    assert trust.tls.require_client is False
    strict = links.server_trust(plan.merge({"security.clients": "certificate"}).security, "tcp://10.0.0.1:7070")
    assert strict.issuer is None
    assert strict.tls is not None
    assert strict.tls.require_client is True


def test_a_client_encrypts_where_it_knows_an_authority_and_must_know_one_beyond_this_machine() -> None:
    token = pki.Token("anna", "client", "77", "88", "PEM")
    assert links.remote_trust("tcp://127.0.0.1:7", None, None, None, "auto") == Trust()
    assert links.remote_trust("tcp://10.0.0.1:7", token, None, None, "off") == Trust(token="77")
    trust = links.remote_trust("tcp://127.0.0.1:7", token, None, None, "auto")
    assert trust == Trust(token="77", tls=Tls("PEM", None, require_client=False))
    other = links.remote_trust("tcp://10.0.0.1:7", token, "OTHER", None, "auto").tls
    assert other is not None
    assert other.authority == "OTHER"
    with pytest.raises(LinkError, match="--token-file"):
        links.remote_trust("tcp://10.0.0.1:7", None, None, None, "auto")


def test_a_node_of_a_tree_knows_who_issues_tokens_and_has_no_secret(tmp_path: Path) -> None:
    pki.init(tmp_path / "pki", ["10.0.0.1"], 1)
    token = pki.read_token(pki.issue(tmp_path / "pki", "west", 1, role="tree-node", hosts=["10.0.0.2"])[2])
    identity = Identity("PEM", "KEY")
    trust = links.tree_node_trust("tcp://0.0.0.0:7", token, identity)
    tls = Tls(token.authority, identity, require_client=False)
    assert trust == Trust(issuer=(tmp_path / "pki" / "issuer.pub").read_text().strip(), tls=tls)
    assert links.tree_node_trust("tcp://127.0.0.1:7", token, None) == Trust(issuer=token.issuer)
    assert links.tree_node_trust("tcp://127.0.0.1:7", None, None) == Trust()
    for lacking in [(None, identity), (token, None), (None, None)]:
        with pytest.raises(LinkError, match="who may join this node") as caught:
            links.tree_node_trust("tcp://0.0.0.0:7", *lacking)
        assert "--role tree-node --host HOST" in caught.value.hint


def test_a_local_run_makes_its_own_trust() -> None:
    server, client = links.local_trust(Plan.of({}).security, "tcp://127.0.0.1:0")
    assert server == client == Trust(token=server.token)
    assert str(server.token) not in repr(server)
    server, client = links.local_trust(Plan.of({"security": {"tls": "on"}}).security, "tcp://127.0.0.1:0")
    assert server.tls is not None
    assert client.tls is not None
    assert server.tls.authority == client.tls.authority
    assert client.tls.identity is None


@pytest.mark.parametrize("text", ["", "ada", ":word", "ada:one\nbea:two\n"])
def test_a_file_without_a_login_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "login"
    file.write_text(text)
    with pytest.raises(LinkError, match="user:password"):
        links.login(file)
