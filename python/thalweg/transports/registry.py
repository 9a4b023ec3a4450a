"""The transports that this build knows, and what each can do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from thalweg import _core, wire
from thalweg.errors import PlanError

OptionValue: TypeAlias = bool | int | float | str
_DECIMAL: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
# An address without a transport, as 127.0.0.1:7070 or [::1]:7070.
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport can do. docs/reference/transports.md explains them; chunks are in bytes."""

    reliable: bool
    ordered: bool
    settled: bool
    detached: bool
    datagrams: bool
    fan_out: bool
    broker: bool
    zero_copy: bool
    encrypted: bool
    sender_unmodified: bool
    symmetric: bool
    remote: bool
    in_process: bool
    lends: bool
    congestion: bool
    retransmissions: bool
    max_chunk: int
    preferred_chunk: int


@dataclass(frozen=True, slots=True)
class Kind:
    """What an option may be. A number has ``least`` and ``most``, a choice has ``choices``."""

    type: Literal["flag", "number", "share", "choice", "text"]
    default: OptionValue
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()

    def table(self) -> dict[str, object]:
        """Return the core's description of the kind, for JSON, without fields that do not apply to the type."""
        parts = {"least": self.least, "most": self.most, "choices": self.choices or None}
        present = {name: value for name, value in parts.items() if value is not None}
        return {"type": self.type, "default": self.default, **present}


@dataclass(frozen=True, slots=True)
class WordNeed:
    """An option has an effect only if the option ``name`` is one of ``among``."""

    type: Literal["word"]
    name: str
    among: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChunkNeed:
    """An option is at most the length of a chunk and ``beside``, in bytes."""

    type: Literal["chunk"]
    beside: int


@dataclass(frozen=True, slots=True)
class Setting:
    """An option of a transport's own: its name, kind, meaning, and what it needs to have an effect."""

    name: str
    kind: Kind
    meaning: str
    needs: tuple[WordNeed | ChunkNeed, ...]


@dataclass(frozen=True, slots=True)
class Transport:
    """A transport. ``reason`` says why it is not ``available``."""

    name: str
    available: bool
    reason: str
    capabilities: Capabilities
    settings: tuple[Setting, ...]


@lru_cache(maxsize=1)
def transports() -> list[Transport]:
    """Return the transports of this build."""
    return wire.decode(list[Transport], _core.transports())


def can(scheme: str) -> Capabilities:
    """Return the capabilities of the transport that addresses with ``scheme`` take. Raises PlanError."""
    for entry in transports():
        if entry.name == scheme:
            return entry.capabilities
    names = ", ".join(entry.name for entry in transports())
    raise PlanError(f"unknown transport {scheme!r}", f"{meant(scheme)}Known: {names}")


def meant(text: str) -> str:
    """Return a question that proposes the URL if ``text`` is an address without a transport, else ""."""
    return f"Did you mean tcp://{text}? " if _ADDRESS.fullmatch(text) else ""


def lends(url: str) -> bool:
    """Return whether a peer over ``url`` receives data in shared memory without a copy. Raises PlanError."""
    return can(url.partition("://")[0]).lends


def own_options(texts: Iterable[str]) -> dict[str, OptionValue]:
    """Return a transport's own options from texts ``KEY=VALUE``, by key: true, false, numbers, else text.

    Raises PlanError for what is not of that form.
    """
    words: dict[str, bool] = {"true": True, "false": False}
    options: dict[str, OptionValue] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key or not equals:
            raise PlanError(f"{text!r} is no option of a transport", "Write it as KEY=VALUE, as qos=1")
        options[key] = words.get(value, _number(value))
    return options


def _number(text: str) -> int | float | str:
    """Return the number that a text stands for, and any other text unchanged."""
    if not _DECIMAL.fullmatch(text):
        return text
    return float(text) if "." in text else int(text)
