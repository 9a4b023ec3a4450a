"""The files by which peers trust each other: a certificate authority, the server's certificate, clients' tokens.

Only their owner can read private files. No file is ever overwritten.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from thalweg import _core, wire
from thalweg.errors import LinkError, PlanError

AUTHORITY: Final = "ca.crt"
AUTHORITY_KEY: Final = "ca.key"
SERVER: Final = "server.crt"
SERVER_KEY: Final = "server.key"
SECRET: Final = "secret"  # noqa: S105 - the name of a file
# The file with the public key of the secret. Servers check tokens with it.
ISSUER: Final = "issuer.pub"
# The parties whose tokens and certificates no longer count. Running servers read it again when it changes.
REVOKED: Final = "revoked"
REVOKED_HEAD: Final = "# Parties whose tokens and certificates no longer count: role, name, since when.\n"
PRIVATE: Final = 0o600
TOKEN_HEAD: Final = "thalweg token 2"  # noqa: S105 - the first line of a file
# The first line of tokens of earlier releases, which name no role.
OLD_TOKEN_HEAD: Final = "thalweg token 1"  # noqa: S105 - as above
# Roles of tokens and certificates. Each admits its holder only as that role.
ROLES: Final = tuple(_core.pki_roles())
# Roles to which other parties connect.
LISTENING: Final = ("tree-node", "graph-node")
# Roles that a server with the pki folder admits, and can shut out.
REVOCABLE: Final = ("client", "task-member", "tree-node")
LARGEST_FILE: Final = 1 << 20
# Servers read a list of at most this size: some 50,000 parties.
LARGEST_LIST: Final = 4 << 20
# Names of the authority's own files.
_OWN: Final = ("ca", "server", "secret", "issuer", REVOKED)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


@dataclass(frozen=True)
class Token:
    """The content of a party's token file: its name and role, and its token in hex.

    ``issuer`` is the public key, in hex, with which tokens are checked. ``authority`` is the certificate of the
    authority that signed the server's certificate (PEM).
    """

    name: str
    role: str
    token: str
    issuer: str
    authority: str

    def text(self) -> str:
        """Return the token as the text of its file."""
        fields = f"name = {self.name}\nrole = {self.role}\ntoken = {self.token}\nissuer = {self.issuer}\n"
        return f"{TOKEN_HEAD}\n{fields}{self.authority}"


def init(folder: Path, hosts: Sequence[str], days: int) -> list[Path]:
    """Make an authority, a server's certificate for ``hosts`` and a secret in ``folder``; return the files.

    Raises PlanError if one is there already or cannot be written.
    """
    names = [AUTHORITY, AUTHORITY_KEY, SERVER, SERVER_KEY, SECRET, ISSUER]
    _refuse_existing([folder / name for name in names], "Take another folder with --dir, or use what is there")
    authority, authority_key = _core.pki_authority("thalweg", days)
    server, server_key = _core.pki_issue(authority, authority_key, "server", list(hosts), days, "server")
    secret = _core.pki_secret()
    issuer = _core.pki_issuer(secret)
    contents = [authority, authority_key, server, server_key, f"{secret}\n", f"{issuer}\n"]
    _make_folder(folder)
    return [_write(folder / name, content) for name, content in zip(names, contents, strict=True)]


def issue(
    folder: Path,
    name: str,
    days: int,
    output: Path | None = None,
    *,
    hosts: Sequence[str] = (),
    role: str = "client",
) -> list[Path]:
    """Make a party's certificate, key and token for one of the ``ROLES`` in ``output`` (``folder``); return the files.

    With ``hosts``, names and addresses by which others reach it, the certificate is for listening as well, as nodes of
    a tree or a graph do.
    Raises PlanError if one is there already, or ``folder`` was not made by ``init``.
    """
    if role not in ROLES:
        raise PlanError(f"there is no role {role!r}", f"Choose from {', '.join(ROLES)}")
    if hosts and role not in LISTENING:
        raise PlanError(f"nobody connects to a {role}", f"Remove --host, or give --role {' or '.join(LISTENING)}")
    if not _NAME.fullmatch(name):
        raise PlanError(f"{name!r} cannot be a name", "Take up to 128 letters, digits, dots, hyphens, underscores")
    if name in _OWN:
        raise PlanError(f"the name {name!r} is the authority's own", "Take another name")
    _refuse_revoked(folder, role, name)
    authority, secret = read(folder / AUTHORITY), read(folder / SECRET).strip()
    target = output or folder
    paths = [target / f"{name}.crt", target / f"{name}.key", target / f"{name}.token"]
    _refuse_existing(paths, "Take another name, or use what is there")
    certificate, key = _core.pki_issue(authority, read(folder / AUTHORITY_KEY), name, list(hosts), days, role)
    token = Token(name, role, _core.pki_token(secret, role, name), _core.pki_issuer(secret), authority)
    _make_folder(target)
    if not (folder / ISSUER).exists():  # the folder was made by an earlier release
        _write(folder / ISSUER, f"{token.issuer}\n")
    return [_write(path, content) for path, content in zip(paths, [certificate, key, token.text()], strict=True)]


@dataclass(frozen=True)
class Certificate:
    """What a certificate says: name, role (an authority has none), hosts, and validity in seconds since 1970."""

    name: str
    role: str | None
    hosts: Sequence[str]
    not_before: int
    not_after: int

    @classmethod
    def read(cls, path: Path) -> Certificate:
        """Read a file with a certificate. It is not verified. Raises PlanError, CoreError."""
        return wire.decode(cls, _core.pki_describe(read(path)))


def renew(folder: Path, name: str, days: int, place: Path | None = None) -> list[Path]:
    """Replace a party's certificate and key, or those of the server, in ``place`` (``folder``); return the files.

    Name, role and hosts stay. Tokens do not expire, so the token stays as it is. Raises PlanError if there is no such
    certificate of this authority, if its name is revoked, or if a file cannot be written.
    """
    target = place or folder
    paths = [target / f"{name}.crt", target / f"{name}.key"]
    old = Certificate.read(paths[0])
    if old.role is None or old.name != name:
        raise PlanError(f"{paths[0]} is not a certificate of {name}", "Name a party of `thalweg pki issue`, or server")
    _refuse_revoked(folder, old.role, name)
    authority, key = read(folder / AUTHORITY), read(folder / AUTHORITY_KEY)
    # Anybody can write a certificate with any role and hosts, so only those of this authority are renewed.
    if not _core.pki_has_signed(authority, key, read(paths[0])):
        raise PlanError(f"{paths[0]} is not a certificate of this authority", "Issue one with `thalweg pki issue`")
    made = _core.pki_issue(authority, key, name, list(old.hosts), days, old.role)
    # The key first: whoever reads in between finds that the pair does not fit, and not an old certificate.
    for path, content in reversed(list(zip(paths, made, strict=True))):
        _replace(path, content, private=path is paths[1])
    return paths


def renewable(folder: Path, place: Path | None = None) -> list[str]:
    """Return the names whose certificates in ``place`` (``folder``) can be renewed. Raises PlanError if none can."""
    gone = revoked(folder)
    named = [(path.stem, said) for path, said in certificates(place or folder)]
    found = [name for name, said in named if said.role is not None and (said.role, name) not in gone]
    if not found:
        raise PlanError(f"{place or folder} has no certificate to renew", "Name the folder of `thalweg pki init`")
    return found


def certificates(folder: Path) -> list[tuple[Path, Certificate]]:
    """Return the certificates in a folder, by the names of their files. Raises PlanError, CoreError."""
    return [(path, Certificate.read(path)) for path in sorted(folder.glob("*.crt"))]


def own_expiries(folder: Path) -> dict[str, int]:
    """Return when the authority's and the server's certificates expire, in seconds since 1970. Raises PlanError."""
    own = {"ca": folder / AUTHORITY, "server": folder / SERVER}
    return {name: Certificate.read(path).not_after for name, path in own.items() if path.exists()}


def role_of(folder: Path, name: str) -> str:
    """Return the role for which a party was issued, from its certificate or its token in ``folder``.

    Raises PlanError if ``folder`` is no authority's, has neither file, or if the two name different roles.
    """
    read(folder / AUTHORITY)
    _check_party(name)
    certificate, token = folder / f"{name}.crt", folder / f"{name}.token"
    found = [Certificate.read(certificate).role] if certificate.exists() else []
    found += [_token_in(token).role] if token.exists() else []
    roles = sorted({role for role in found if role is not None})
    if not roles:
        hint = f"Check the name; if the files of {name} are elsewhere, give --role as it was issued"
        raise PlanError(f"{folder} has no {name}.crt and no {name}.token that names a role", hint)
    if len(roles) > 1:
        raise PlanError(f"{folder} has files of {name} as {' and as '.join(roles)}", "Give --role")
    return roles[0]


def revoke(folder: Path, name: str, role: str) -> Path:
    """Add a party to the list of those whose token and certificates no longer count, for good; return the list.

    Servers that use this folder cut the party off, and refuse it. Raises PlanError if it is on the list already, or the
    list cannot be written.
    """
    if role not in REVOCABLE:
        why = f"no server looks whether a {role} is revoked" if role in ROLES else f"there is no role {role!r}"
        raise PlanError(why, f"Choose from {', '.join(REVOCABLE)}; for others make a new authority")
    _check_party(name)
    read(folder / AUTHORITY)
    path = folder / REVOKED
    with _locked(folder):
        _refuse_revoked(folder, role, name)
        lines = _list(folder) or REVOKED_HEAD
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        # An editor may have left out the last newline.
        lines = f"{lines}{'' if lines.endswith(chr(10)) else chr(10)}{role} {name} {since}\n"
        if len(lines.encode()) > LARGEST_LIST:
            raise PlanError(f"{path} would have more than {LARGEST_LIST} bytes", "Make a new authority")
        _replace(path, lines, private=True)
    return path


def _check_party(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise PlanError(f"{name!r} cannot be a name", "Name a party of `thalweg pki issue`")


def revoked(folder: Path) -> dict[tuple[str, str], str]:
    """Return since when each party, by role and name, is revoked. Raises PlanError."""
    lines = _list(folder).splitlines()
    words = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {(one[0], one[1]): " ".join(one[2:]) for one in words if len(one) > 1}


def _list(folder: Path) -> str:
    """Return the list of revoked parties; "" if there is none. Raises PlanError, also if servers would refuse it."""
    path = folder / REVOKED
    if not path.exists():
        return ""
    lines = read(path, LARGEST_LIST + 1)
    if len(lines.encode()) > LARGEST_LIST:
        raise PlanError(f"{path} has more than {LARGEST_LIST} bytes", "Make a new authority")
    return lines


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let no other command change the list of revoked parties meanwhile. Raises PlanError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise PlanError(f"cannot open {folder}: {error.strerror}", "Name the folder of `thalweg pki init`") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, content: str, *, private: bool) -> None:
    """Write a file anew and rename it, so that nobody reads half of it. Raises PlanError; the old one then stays."""
    part = path.with_name(f".{path.name}.new")
    part.unlink(missing_ok=True)
    _write(part, content, private=private)
    try:
        part.replace(path)
    except OSError as error:
        raise PlanError(f"cannot replace {path}: {error.strerror}", "See who may write to its folder") from error


def _refuse_revoked(folder: Path, role: str, name: str) -> None:
    since = revoked(folder).get((role, name))
    if since is not None:
        raise PlanError(f"{name} was revoked as {role} at {since}", "A name stays revoked: issue another one")


def read(path: Path, most: int = LARGEST_FILE) -> str:
    """Return the text of one of these files, at most ``most`` bytes. Raises PlanError if it is not there."""
    try:
        with path.open("rb") as file:
            content = file.read(most).decode()
    except OSError as error:
        raise PlanError(
            f"cannot read {path}: {error.strerror}", "Make it with `thalweg pki init` and `thalweg pki issue NAME`"
        ) from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is not text", "Name a file that `thalweg pki` made") from error
    return content


def read_token(path: Path) -> Token:
    """Return the token in a file. Raises PlanError if it is none, LinkError if others may read it."""
    token = _token_in(path)
    if path.stat().st_mode & 0o077:
        raise LinkError(f"others may read the token {path}", f"Run chmod 600 {path}")
    return token


def _token_in(path: Path) -> Token:
    text = read(path)
    head, begin, certificates = text.partition("-----BEGIN CERTIFICATE-----")
    lines = [line.strip() for line in head.splitlines() if line.strip() and not line.startswith("#")]
    values = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines[1:])}
    if lines[:1] == [OLD_TOKEN_HEAD]:
        hint = "Make a new one with `thalweg pki issue NAME --role ROLE`, from the server's pki folder"
        raise PlanError(f"{path} is a token of an earlier release, which names no role", hint)
    if lines[:1] != [TOKEN_HEAD] or not {"name", "role", "token", "issuer"} <= values.keys():
        raise PlanError(f"{path} is not a token", "Name the NAME.token that `thalweg pki issue NAME` made")
    return Token(values["name"], values["role"], values["token"], values["issuer"], begin + certificates)


def own_hosts() -> list[str]:
    """Return the names and addresses by which this machine is most likely reached."""
    name = socket.gethostname()
    return list(dict.fromkeys(["localhost", "127.0.0.1", "::1", name, *_addresses(name)]))


def _addresses(name: str) -> list[str]:
    addresses: list[str] = []
    with suppress(OSError):  # a machine that does not know its own name has no address to add
        addresses += [str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    # Connecting a datagram socket sends nothing; it asks which address the default route has, if there is one.
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        addresses.append(str(probe.getsockname()[0]))
    return addresses


def _refuse_existing(paths: Sequence[Path], hint: str) -> None:
    there = [path for path in paths if path.exists()]
    if there:
        raise PlanError(f"{there[0]} is there already and is not overwritten", hint)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"cannot make {folder}: {error.strerror}", "Take another folder") from error


def _write(path: Path, content: str, *, private: bool | None = None) -> Path:
    """Write a new file and sync it. Certificates and public keys are for all to read; ``private`` says otherwise."""
    open_to_all = path.suffix in (".crt", ".pub") if private is None else not private
    mode = 0o644 if open_to_all else PRIVATE
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise PlanError(f"cannot write {path}: {error.strerror}", "Take another folder") from error
    return path
