"""Messages between a run and its processes: the order that a process starts with, and its final report.

Each is a line of JSON. Both ends run the same release, so an order needs no validation. pydantic is not used, because
its import would take each client 0.3 s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from typing_extensions import Self

from thalweg.lab.inside import ProcessPlace
from thalweg.machine import Usage

# The fields of a line of JSON, by name, before ``of`` of one of the classes below has read it.
Line = Mapping[str, Any]
Note = Callable[[str], None]
AnyOrder = TypeVar("AnyOrder", bound="Order")
AnyOrder_co = TypeVar("AnyOrder_co", bound="Order", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a process reads when it starts. Each program's order adds its own fields.

    ``threads`` is how many threads it computes with; None leaves the choice to it. ``place`` is the network namespace
    and cgroup that it enters before it does anything else. ``parent`` is the process with which it has to end.
    """

    name: str
    threads: int | None = None
    place: ProcessPlace | None = None
    parent: int = field(default_factory=os.getpid)

    @classmethod
    def of(cls, table: Line) -> Self:
        """Return the order with the fields of ``table``. Raises TypeError for unknown or missing fields."""
        place = table.get("place")
        return cls(**{**table, "place": None if place is None else ProcessPlace(**place)})


class Orders(Protocol[AnyOrder_co]):
    """Makes the order of each process of a run."""

    def of(self, name: str, number: int) -> AnyOrder_co:
        """Return the order of process ``number``, counted from 1."""


# The work of a process. Its arguments: the order, and a function that gets notes for the log.
Work = Callable[[AnyOrder, Note], None]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a process could not do its work, and what to do."""

    cause: str
    hint: str


@dataclass(frozen=True, slots=True)
class Trained:
    """How far a client's training in a round is, from 0 to 1. Its process writes it while it trains."""

    round: int
    fraction: float
    say: ClassVar[str] = "trained"

    @classmethod
    def of(cls, table: Line) -> Trained:
        """Read a line's fields. Raises KeyError, TypeError or ValueError if they do not fit."""
        return cls(int(table["round"]), min(1.0, max(0.0, float(table["fraction"]))))

    def table(self) -> dict[str, object]:
        """Return the line's fields."""
        return {"say": self.say, "round": self.round, "fraction": round(self.fraction, 3)}


@dataclass(frozen=True)
class Report(Usage):
    """A process's final report: what it used, and why it failed, if it did."""

    error: Failure | None = None
    # The last lines of its log, if that is on a machine whose files the run cannot read.
    log: str = ""

    @classmethod
    def of(cls, table: Line) -> Report:
        """Return the report with the fields of ``table``. Raises KeyError or TypeError if they do not fit."""
        error = table.get("error")
        failure = None if error is None else Failure(**error)
        return cls(table["cpu_seconds"], table["peak_rss_bytes"], failure, table.get("log", ""))
