"""A lab's hosts, as the core reports them, and the messages of its supervisor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host: its namespace, with inode and cookie, its addresses, its device, and its RDMA device if it has one.

    The cookie is None on kernels without cookies.
    """

    namespace: str = ""
    inode: int = 0
    cookie: int | None = None
    ipv4: str = ""
    ipv6: str | None = None
    device: str = ""
    rdma: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What a supervisor reads first: the network as the core's JSON, the wanted name, and how to run."""

    spec: str
    name: str
    unique: bool
    attached: bool
    cgroups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of a supervisor: its kind, cause and hint."""

    kind: str
    cause: str
    hint: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The name that a lab got."""

    name: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A supervisor's answer: ``ready`` after it has started, ``ok`` with the result of a request, or an error."""

    ok: Any = None
    error: Failure | None = None
    ready: Ready | None = None
