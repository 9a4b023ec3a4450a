"""The security of links to a server: whether they are encrypted, and which keys and tokens each end trusts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from thalweg import wire
from thalweg.errors import LinkError
from thalweg.transports import registry

if TYPE_CHECKING:
    from thalweg.sections import SecuritySection
    from thalweg.transports.pki import Token


@dataclass(frozen=True)
class Identity:
    """A party's certificate and its key, in PEM."""

    certificate: str
    key: str = field(repr=False)

    @classmethod
    def read(cls, certificate: Path, key: Path) -> Identity:
        """Return the identity in two files. Raises LinkError."""
        from thalweg.transports import pki

        return cls(pki.read(certificate), pki.read(key))


@dataclass(frozen=True)
class Tls:
    """How one end of a link encrypts: the authority whose certificates it trusts (PEM), and what it shows itself.

    ``require_client``: a server demands certificates from clients. ``server_name``: the name that the server's
    certificate must have, if that is not the host in its URL.
    """

    authority: str
    identity: Identity | None
    require_client: bool
    server_name: str | None = None

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Tls:
        """Return the settings that a table stands for. Raises TypeError for unknown or missing fields."""
        identity = table["identity"]
        return cls(**{**table, "identity": None if identity is None else Identity(**identity)})

    def table(self) -> dict[str, object]:
        """Return it as the core reads it."""
        return wire.sparse(self)


@dataclass(frozen=True)
class Login:
    """A party's login at a broker."""

    user: str
    password: str = field(repr=False)


class Tokens(TypedDict, total=False):
    """The core's options that say how a server checks tokens."""

    token: str
    issuer: str


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What one end of a link shows the other, and what it demands.

    A client shows its ``token``. A server checks tokens with the public key ``issuer``, or else demands that they equal
    its ``token``. A node of a graph shows ``own_token`` where it dials. Without ``tls`` the link is not encrypted.
    ``revoked`` is a server's file with the parties that it refuses whatever they show.
    """

    token: str | None = field(default=None, repr=False)
    issuer: str | None = None
    own_token: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    login: Login | None = None
    revoked: str | None = None

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Trust:
        """Return the trust that a table stands for. Raises TypeError for unknown or missing fields."""
        tls, login = table.get("tls"), table.get("login")
        made = {"tls": None if tls is None else Tls.of(tls), "login": None if login is None else Login(**login)}
        return cls(**{**table, **made})

    def table(self) -> dict[str, object]:
        """Return what is known, by name."""
        return wire.sparse(self)

    @property
    def tokens(self) -> Tokens:
        """The core's options that say how a server checks tokens."""
        token: Tokens = {} if self.token is None else {"token": self.token}
        return token if self.issuer is None else {**token, "issuer": self.issuer}


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


def server_trust(chosen: SecuritySection, url: str) -> Trust:
    """Return ``tls`` and ``issuer`` of a server at ``url`` from its pki folder.

    Raises LinkError if other machines can reach ``url`` and no such folder is given.
    """
    from thalweg.transports import pki

    folder = chosen.pki
    if folder is None:
        if is_local(url) and chosen.tls != "on":
            return Trust()
        raise LinkError(
            f"{url} can be reached from other machines, and nothing says who may join",
            "Run `thalweg pki init`, give its folder with --pki, and run `thalweg pki issue NAME --role ROLE` for each",
        )
    place = Path(folder)
    certificates_only = chosen.clients == "certificate"
    issuer = None if certificates_only else pki.read(place / pki.ISSUER).strip()
    revoked = str(place / pki.REVOKED)
    if not uses_tls(chosen, url):
        return Trust(issuer=issuer, revoked=revoked)
    identity = Identity.read(place / pki.SERVER, place / pki.SERVER_KEY)
    tls = Tls(pki.read(place / pki.AUTHORITY), identity, certificates_only)
    return Trust(issuer=issuer, tls=tls, revoked=revoked)


def remote_trust(url: str, token: Token | None, authority: str | None, identity: Identity | None, tls: str) -> Trust:
    """Return ``tls`` and ``token`` of a client of the server at ``url``, with all certificates in PEM.

    ``tls`` is auto, on or off. auto encrypts if an authority is known; beyond this machine it must be known. Raises
    LinkError if it is not.
    """
    trusted = authority or (token.authority if token else None) or None
    trust = Trust(token=None if token is None else token.token)
    if tls == "off" or (tls == "auto" and trusted is None and is_local(url)):
        return trust
    if trusted is None:
        raise LinkError(
            f"links to {url} are encrypted, and no certificate authority is known",
            "Give the file of `thalweg pki issue NAME` with --token-file, or ca.crt with --ca",
        )
    return replace(trust, tls=Tls(trusted, identity, require_client=False))


def local_trust(chosen: SecuritySection, url: str) -> tuple[Trust, Trust]:
    """Return the trust of the server and of the clients of a run on this machine. It is made for this run alone."""
    from thalweg import _core

    token = _core.pki_secret()
    if not uses_tls(chosen, url):
        return Trust(token=token), Trust(token=token)
    authority, key = _core.pki_authority("thalweg run", 1)
    certificate, server_key = _core.pki_issue(authority, key, "server", ["127.0.0.1", "::1", "localhost"], 1, "server")
    server_tls = Tls(authority, Identity(certificate, server_key), require_client=False)
    client_tls = Tls(authority, None, require_client=False, server_name="localhost")
    return Trust(token=token, tls=server_tls), Trust(token=token, tls=client_tls)


def mutual_trust(chosen: SecuritySection, url: str, names: Sequence[str]) -> dict[str, Trust]:
    """Return the trust of each node of a run on this machine. It is made for this run alone.

    A node demands ``token`` from nodes that dial it, and shows ``own_token`` when it dials. With ``tls`` it has one
    certificate for both, in its own name.
    """
    from thalweg import _core

    token = _core.pki_secret()
    common = Trust(token=token, own_token=token)
    if not uses_tls(chosen, url):
        return dict.fromkeys(names, common)
    authority, key = _core.pki_authority("thalweg run", 1)
    trusts = {}
    for name in names:
        certificate, own_key = _core.pki_issue(authority, key, name, ["127.0.0.1", "::1", "localhost"], 1, "graph-node")
        tls = Tls(authority, Identity(certificate, own_key), require_client=False, server_name="localhost")
        trusts[name] = replace(common, tls=tls)
    return trusts


def node_trust(url: str, authority: str | None, identity: Identity | None, tls: str = "auto") -> Trust:
    """Return the trust of a node on several machines that listens at ``url``: both ends of a link have certificates.

    ``authority`` and ``identity`` are PEM. Raises LinkError if others can reach ``url`` and these are missing.
    """
    if identity is not None and authority is not None and tls != "off":
        return Trust(tls=Tls(authority, identity, require_client=True))
    if is_local(url) and tls != "on":
        return Trust()
    raise LinkError(
        f"{url} can be reached from other machines, and nothing says who this node is and whom it may trust",
        "Run `thalweg pki issue NAME --role graph-node --host HOST`, and give --ca, --cert and --key",
    )


def tree_node_trust(url: str, token: Token | None, identity: Identity | None) -> Trust:
    """Return ``tls`` and ``issuer`` of a node of a tree that listens at ``url`` for its clients.

    The node checks clients' tokens with the issuer's public key from its own ``token``. It shows clients ``identity``,
    its certificate and key in PEM. It does not have the issuer's secret, so it cannot issue tokens. Raises LinkError if
    others can reach ``url`` and one of the two is missing.
    """
    if token is None or (identity is None and not is_local(url)):
        if token is None and identity is None and is_local(url):
            return Trust()
        raise LinkError(
            f"{url} can be reached from other machines, and nothing says who may join this node",
            "Run `thalweg pki issue NAME --role tree-node --host HOST`, and give --token-file, --cert and --key",
        )
    if identity is None:
        return Trust(issuer=token.issuer)
    return Trust(issuer=token.issuer, tls=Tls(token.authority, identity, require_client=False))


def login(path: Path | None) -> Login | None:
    """Return the login in the one line of a file, user:password. Raises LinkError."""
    if path is None:
        return None
    from thalweg.transports import pki

    user, colon, password = pki.read(path).strip().partition(":")
    if not user or not colon or "\n" in password:
        raise LinkError(f"{path} is no login", "It has one line, user:password")
    return Login(user, password)
