"""The security of links to a server: whether they are encrypted, and which keys and tokens each end trusts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.errors import LinkError
from thalweg.transports import registry

if TYPE_CHECKING:
    from thalweg.sections import SecuritySection
    from thalweg.transports.pki import Token


def is_local(url: str) -> bool:
    """Return whether only this machine can reach ``url``: a loopback address, or a transport within the machine."""
    scheme, _, rest = url.partition("://")
    authority = rest.partition("/")[0]
    host = authority.rpartition(":")[0] if authority.count(":") else authority
    try:
        return not registry.can(scheme).remote or host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def uses_tls(chosen: SecuritySection, url: str) -> bool:
    """Return whether a server at ``url`` encrypts. By default it does with a pki folder, and beyond this machine."""
    return chosen.tls == "on" or (chosen.tls == "auto" and (chosen.pki is not None or not is_local(url)))


def server_trust(chosen: SecuritySection, url: str) -> dict[str, Any]:
    """Return ``tls`` and ``issuer`` of a server at ``url`` from its pki folder.

    Raises LinkError if other machines can reach ``url`` and no such folder is given.
    """
    from thalweg.transports import pki

    folder = chosen.pki
    if folder is None:
        if is_local(url) and chosen.tls != "on":
            return {}
        raise LinkError(
            f"{url} can be reached from other machines, and nothing says who may join",
            "Run `thalweg pki init`, give its folder with --pki, and run `thalweg pki issue NAME --role ROLE` for each",
        )
    place = Path(folder)
    certificates_only = chosen.clients == "certificate"
    trust: dict[str, Any] = {} if certificates_only else {"issuer": pki.read(place / pki.ISSUER).strip()}
    if uses_tls(chosen, url):
        trust["tls"] = {
            "authority": pki.read(place / pki.AUTHORITY),
            "identity": {"certificate": pki.read(place / pki.SERVER), "key": pki.read(place / pki.SERVER_KEY)},
            "require_client": certificates_only,
        }
    return trust


def remote_trust(
    url: str, token: Token | None, authority: str | None, identity: Mapping[str, str] | None, tls: str
) -> dict[str, Any]:
    """Return ``tls`` and ``token`` of a client of the server at ``url``, with all certificates in PEM.

    ``tls`` is auto, on or off. auto encrypts if an authority is known; beyond this machine it must be known. Raises
    LinkError if it is not.
    """
    known = authority or (token.authority if token else None) or None
    trust: dict[str, Any] = {} if token is None else {"token": token.token}
    if tls == "off" or (tls == "auto" and known is None and is_local(url)):
        return trust
    if known is None:
        raise LinkError(
            f"links to {url} are encrypted, and no certificate authority is known",
            "Give the file of `thalweg pki issue NAME` with --token-file, or ca.crt with --ca",
        )
    return {**trust, "tls": {"authority": known, "identity": identity, "require_client": False}}


def local_trust(chosen: SecuritySection, url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the trust of the server and of the clients of a run on this machine. It is made for this run alone."""
    from thalweg import _core

    token = _core.pki_secret()
    if not uses_tls(chosen, url):
        return {"token": token}, {"token": token}
    authority, key = _core.pki_authority("thalweg run", 1)
    certificate, server_key = _core.pki_issue(authority, key, "server", ["127.0.0.1", "::1", "localhost"], 1, "server")
    identity = {"certificate": certificate, "key": server_key}
    server_tls = {"authority": authority, "identity": identity, "require_client": False}
    client_tls = {"authority": authority, "identity": None, "require_client": False, "server_name": "localhost"}
    return {"token": token, "tls": server_tls}, {"token": token, "tls": client_tls}


def mutual_trust(chosen: SecuritySection, url: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the trust of each node of a run on this machine. It is made for this run alone.

    A node demands ``token`` from nodes that dial it, and shows ``own_token`` when it dials. With ``tls`` it has one
    certificate for both, in its own name.
    """
    from thalweg import _core

    token = _core.pki_secret()
    common = {"token": token, "own_token": token}
    if not uses_tls(chosen, url):
        return dict.fromkeys(names, common)
    authority, key = _core.pki_authority("thalweg run", 1)
    trusts = {}
    for name in names:
        certificate, own_key = _core.pki_issue(authority, key, name, ["127.0.0.1", "::1", "localhost"], 1, "graph-node")
        identity = {"certificate": certificate, "key": own_key}
        tls = {"authority": authority, "identity": identity, "require_client": False, "server_name": "localhost"}
        trusts[name] = {**common, "tls": tls}
    return trusts


def node_trust(
    url: str, authority: str | None, identity: Mapping[str, str] | None, tls: str = "auto"
) -> dict[str, Any]:
    """Return the trust of a node on several machines that listens at ``url``: both ends of a link have certificates.

    ``authority`` and ``identity`` are PEM. Raises LinkError if others can reach ``url`` and these are missing.
    """
    if identity is not None and authority is not None and tls != "off":
        return {"tls": {"authority": authority, "identity": identity, "require_client": True}}
    if is_local(url) and tls != "on":
        return {}
    raise LinkError(
        f"{url} can be reached from other machines, and nothing says who this node is and whom it may trust",
        "Run `thalweg pki issue NAME --role graph-node --host HOST`, and give --ca, --cert and --key",
    )


def tree_node_trust(url: str, token: Token | None, identity: Mapping[str, str] | None) -> dict[str, Any]:
    """Return ``tls`` and ``issuer`` of a node of a tree that listens at ``url`` for its clients.

    The node checks clients' tokens with the issuer's public key from its own ``token``. It shows clients ``identity``,
    its certificate and key in PEM. It does not have the issuer's secret, so it cannot issue tokens. Raises LinkError if
    others can reach ``url`` and one of the two is missing.
    """
    if token is None or (identity is None and not is_local(url)):
        if token is None and identity is None and is_local(url):
            return {}
        raise LinkError(
            f"{url} can be reached from other machines, and nothing says who may join this node",
            "Run `thalweg pki issue NAME --role tree-node --host HOST`, and give --token-file, --cert and --key",
        )
    if identity is None:
        return {"issuer": token.issuer}
    tls = {"authority": token.authority, "identity": identity, "require_client": False}
    return {"issuer": token.issuer, "tls": tls}


def login(path: Path | None) -> dict[str, str] | None:
    """Return ``{"user", "password"}`` from the one line of a file, user:password. Raises LinkError."""
    if path is None:
        return None
    from thalweg.transports import pki

    user, colon, password = pki.read(path).strip().partition(":")
    if not user or not colon or "\n" in password:
        raise LinkError(f"{path} is no login", "It has one line, user:password")
    return {"user": user, "password": password}
