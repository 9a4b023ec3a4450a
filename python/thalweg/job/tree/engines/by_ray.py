"""The run's side of the ``ray`` engine, which never imports Ray. Ray places, starts and restarts the nodes.

Ray runs in a process of its own (``thalweg.job.tree.engines.ray_driver``), so that its threads, memory and signal
handlers stay out of the server's process. The run sends that process each node's order; it
reports where nodes run and how they end.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from thalweg import extras
from thalweg.errors import PlanError, RoundError
from thalweg.job.common.fleet import Fleet, OnEnd
from thalweg.job.common.messages import Failure, Line, Orders, Report
from thalweg.job.tree.engines.ray_order import RayOrder, RayPlace
from thalweg.job.tree.messages import KnownNode
from thalweg.job.tree.order import NodeOrder
from thalweg.sections.trees import NodesSection
from thalweg.wire import table_of

# The name of Ray's process in its fleet.
DRIVER: Final = "ray"
PROGRAM: Final = "thalweg.job.tree.engines.ray_driver"
# The oldest release of Ray with authentication by token.
OLDEST: Final = (2, 52)
# Seconds that Ray gets to stop, after the seconds that the nodes got to end.
STOP_SECONDS: Final = 10.0
# Maximum length of the temporary folder's path, in characters. The path of a Unix socket has at most 107 bytes, and Ray
# adds about 70 to the path of its folder.
LONGEST: Final = 30
SHORT: Final = "/tmp"  # noqa: S108 - mkdtemp makes a folder there that nobody else can write


def require() -> str:
    """Return the version of Ray that is installed. Raises PlanError if there is none, or it is too old."""
    get = f"Install it: {extras.hint('ray')}; or take --engine local"
    try:
        installed = version("ray")
    except PackageNotFoundError:
        raise PlanError("Ray is not installed", get) from None
    numbers = tuple(int(part) if part.isdecimal() else 0 for part in installed.split(".")[:2])
    if numbers < OLDEST:
        raise PlanError(f"Ray {installed} is installed, and thalweg needs {'.'.join(map(str, OLDEST))} or newer", get)
    return installed


@dataclass(frozen=True)
class RayOrders:
    """Makes the order of Ray's process."""

    nodes: NodesSection
    count: int
    folder: str

    def of(self, name: str, number: int) -> RayOrder:
        """Return the order of Ray's process, the only process of its fleet."""
        del number
        return RayOrder(
            name=name,
            count=self.count,
            cores=self.nodes.cores,
            cluster=self.nodes.ray_address,
            wait=self.nodes.ray_wait,
            restarts=self.nodes.restarts,
            folder=self.folder,
        )


class Ray:
    """The ``ray`` engine: each node runs in an actor of Ray, which Ray restarts if it dies.

    The run does not learn of such a restart here: the tree's root notices that the node's link broke.
    """

    def __init__(self, nodes: NodesSection, log: Path, lost: OnEnd, note: Callable[[str], None]) -> None:
        self._nodes, self._lost, self._note = nodes, lost, note
        self._fleet: Fleet[RayOrder] = Fleet(log, self._ended, program=PROGRAM, on_line=self._received)
        self._folder: str | None = None
        self._release: str | None = None
        self._places: dict[str, RayPlace] = {}
        self._reports: dict[str, Report] = {}
        self._failed: Failure | None = None

    def start(self, names: Sequence[str], orders: Orders[NodeOrder]) -> None:
        """Start Ray's process, which starts the nodes. Raises PlanError if Ray is not installed."""
        self._release = require()
        if self._nodes.ray_address is None:
            below = tempfile.gettempdir()
            self._folder = tempfile.mkdtemp(prefix="ray-", dir=below if len(below) < LONGEST else SHORT)
        self._note(f"starting Ray {self._release}" if self._folder else f"joining Ray at {self._nodes.ray_address}")
        self._fleet.start([DRIVER], RayOrders(self._nodes, len(names), self._folder or ""))
        for number, name in enumerate(names, 1):
            self._fleet.send(DRIVER, orders.of(name, number))

    def restart(self, name: str, away: float | None = None, known: Sequence[KnownNode] = ()) -> bool:
        """Do nothing and return False, because Ray restarts nodes itself."""
        del name, away, known
        return False

    def address(self, name: str, seconds: float = 0.0) -> str | None:
        """Return None: the nodes' parent, the run itself, learns from them where they listen."""
        del name, seconds
        return None

    def is_over(self, name: str) -> bool:
        return name in self._reports

    def check(self) -> None:
        """Raise RoundError if Ray could not start a node, with the reason."""
        for driver in self._fleet.members:
            if driver.failure is not None:
                error = driver.report and driver.report.error
                failure = error or Failure(f"Ray's process {driver.failure}", _LOG)
                raise RoundError(failure.cause, failure.hint)
        if self._failed is not None:
            raise RoundError(self._failed.cause, self._failed.hint)

    def facts(self) -> dict[str, object]:
        return {
            "name": "ray",
            "release": self._release,
            "nodes": {node: table_of(place) for node, place in self._places.items()},
        }

    def release(self) -> None:
        self._fleet.release()

    def end(self, names: Collection[str]) -> None:
        """Do nothing, because Ray starts no middle nodes, without which no node is cut off."""

    def stop(self, *, grace: float) -> None:
        self._fleet.release()
        for driver in self._fleet.members:
            self._fleet.send(driver.name, {"do": "end", "grace": grace})
        self._fleet.stop(grace=grace + STOP_SECONDS if grace else 0.0)
        if self._folder is not None:
            # If Ray was killed, one of its processes may still be writing there, which makes the removal fail.
            shutil.rmtree(self._folder, ignore_errors=True)

    def reports(self) -> dict[str, Report]:
        return dict(self._reports)

    def _received(self, _driver: str, line: Line) -> None:
        """Handle a line of Ray's process: a note, where a node was placed, or that a node ended."""
        kind, node = line["say"], line["node"]
        if kind == "note":
            self._note(line["text"])
        elif kind == "placed":
            place = self._places[node] = RayPlace(**line["place"])
            self._note(f"{node} is on {place.address}, Ray node {place.ray_node[:8]}")
        elif kind == "ended":
            report = self._reports[node] = Report.of(line["report"])
            if report.error is not None:
                self._end(node, report.error)

    def _end(self, node: str, failure: Failure) -> None:
        self._failed = self._failed or Failure(f"{node} could not take part: {failure.cause}", failure.hint)
        self._lost(node, failure.cause)

    def _ended(self, _driver: str, why: str) -> None:
        """Report all nodes without a final report as lost: Ray's process ended early, and the nodes with it."""
        for name in self._places:
            if name not in self._reports:
                with suppress(RoundError):
                    self._lost(name, f"Ray's process {why}")


_LOG: Final = "See the record's log.txt for what Ray said"
