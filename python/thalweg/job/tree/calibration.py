"""Measures the capacity and the costs of a tree node on this machine by live rounds (LIFL appendix E).

Clients are threads of this process and send at set times, so that updates arrive at a set rate, which grows from step
to step. An update's latency, from its first byte until the sums include it, stays about the same until the node is
overloaded. Rate times latency at that point is the node's capacity, MC.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Final

from thalweg import _core, machine, wire
from thalweg.errors import PlanError, RoundError
from thalweg.job.common.parties import server_party
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.outcome.core import Fold, Outcome, WorkSpan
from thalweg.plan.bound import loopback
from thalweg.plan.options import client_options, server_options
from thalweg.plan.systems import split
from thalweg.sections import toml
from thalweg.sections.trees import CostsSection, TreeSection
from thalweg.transports import links
from thalweg.trees import live
from thalweg.trees.counters import Workers

if TYPE_CHECKING:
    from thalweg.plan import Plan

# A transport inside this process, because the cost of real links is no part of a node's capacity.
URL: Final = "memory://calibrate"
# The node counts as overloaded when an update takes this many times as long as at the first, lowest rate.
SIGNIFICANT: Final = 1.5
# Factor from one rate to the next, and the first rate as a share of the median rate of the bursts.
GROWTH: Final = 1.35
FIRST: Final = 0.1
# Rounds per step; rounds in which all clients send at once; and the maximum number of clients, unless the user sets it.
ROUNDS: Final = 5
BURSTS: Final = 5
CLIENTS: Final = 16
# Maximum number of updates of a pass from which the costs are computed.
PASS: Final = 8
# After this many steps in a row without a higher measured rate, the clients cannot send faster.
TRIES: Final = 3
# Share of the free memory that clients and pool may take.
SHARE: Final = 0.5


@dataclass(frozen=True)
class Step:
    """A measured step: updates arrived at ``rate`` a second and took ``seconds`` each."""

    rate: float
    seconds: float


@dataclass(frozen=True)
class RoundTimes:
    """A round's times for the clients: when it begins, on the machine's clock, and the seconds between two clients."""

    begin: float
    gap: float


@dataclass(frozen=True)
class Knee:
    """A node's capacity as the core finds it, in thousandths of an update, and the step that gave it."""

    capacity: float
    at: Step
    rise: float
    overloaded: bool


@dataclass(frozen=True)
class Calibration:
    """A node's measured capacity in updates, and the costs of its work (docs/reference/json.md)."""

    update_bytes: int
    clients: int
    workers: int
    steps: Sequence[Step]
    significant: float
    capacity: int
    at: Step
    overloaded: bool
    # Why no higher rate was tried.
    ended: str
    most_per_second: float
    costs: CostsSection
    # The sections of a plan with these values.
    toml: str

    def table(self) -> dict[str, object]:
        """Return the object that ``--json`` prints."""
        return {**vars(self), "costs": self.costs.model_dump(exclude_none=True)}


class Bench:
    """A node with its workers and its clients, ready to run rounds."""

    def __init__(self, server: _core.Server, clients: int, limit: float) -> None:
        self._server, self._clients, self._limit = server, clients, limit
        self._numbers = count(1)
        # Number of updates and seconds of each pass in which a worker folded.
        self.passes: list[tuple[int, float]] = []

    def round(self, gap: float) -> tuple[Step, float]:
        """Run a round in which clients start to send ``gap`` seconds apart; return the step, and the round's seconds.

        The seconds count from the first byte sent to the end of the last fold.
        """
        begin = time.monotonic() + 0.01
        config = wire.encode(RoundTimes(begin, gap))
        outcome = wire.decode(Outcome, self._server.round(next(self._numbers), config, self._observe))
        ups = [one for one in outcome.transfers if one.direction == "up" and one.complete]
        if len(ups) < self._clients:
            raise RoundError(f"{len(ups)} of {self._clients} updates came", "Close what else uses this machine")
        begins = sorted(one.send_start for one in ups if one.send_start is not None)
        timeline = outcome.fold.timeline if isinstance(outcome.fold, Fold) else None
        folds = [one for one in (() if timeline is None else timeline.did) if one.what == "fold"]
        self.passes += [(one.updates, one.end - one.start) for one in folds]
        last = max(one.end for one in folds)
        between = begins[-1] - begins[0]
        rate = (len(begins) - 1) / between if between > 0 else float("inf")
        return Step(rate, _folded(folds, self._clients) - sum(begins) / len(begins)), last - begins[0]

    def step(self, gap: float) -> Step:
        """Run ``ROUNDS`` rounds and return the medians of rate and seconds."""
        each = [self.round(gap)[0] for _ in range(ROUNDS)]
        return Step(median(one.rate for one in each), median(one.seconds for one in each))

    def handover(self) -> float | None:
        """Return the median seconds of a hand-over from the node to a worker so far; None if there was none."""
        counters = self._server.tree()
        median_us = None if counters is None else wire.decode(Workers, counters).handover_us.p50
        return None if median_us is None else median_us / 1e6

    def _observe(self, _state: str) -> None:
        if time.monotonic() > self._limit:
            raise RoundError("a round took longer than all of the time", "Take a smaller --model, or more --seconds")


def calibrated(plan: Plan, seconds: float, note: Callable[[str], None]) -> Calibration:
    """Measure a node's capacity and costs within about ``seconds``. ``note`` gets a line for each step.

    Raises PlanError for a plan that cannot be calibrated, RoundError if the time or the machine does not suffice.
    """
    if plan.payload is None:
        raise PlanError(f"{plan.label} is trained, which is no part of a node's work", "Take --model payload:SIZE")
    size = plan.payload
    plan = plan.merge({"aggregation.shape": "tree"})
    clients = _clients(plan, size)
    limit = time.monotonic() + seconds
    with _bench(plan, clients, limit) as bench:
        bursts = [bench.round(0.0)[1] for _ in range(BURSTS)]
        most = clients / median(bursts)
        note(f"{clients} updates at once: {most:.4g} a second")
        steps, ended = _steps(bench, most, clients, limit, note)
        handover = bench.handover()
        passes = list(bench.passes)
    knee = _knee(steps)
    costs = _costs(passes, size, _share(plan), handover)
    capacity = int(knee.capacity) // 1000
    tables = {
        "nodes": {"capacity": capacity, "cores": machine.cores()},
        "tree": {"costs": costs.model_dump(exclude_none=True)},
    }
    return Calibration(
        update_bytes=size,
        clients=clients,
        workers=live.workers(plan),
        steps=steps,
        significant=SIGNIFICANT,
        capacity=capacity,
        at=knee.at,
        overloaded=knee.overloaded,
        ended=ended,
        most_per_second=most,
        costs=costs,
        toml=toml.dumps(tables),
    )


def _steps(
    bench: Bench, most: float, clients: int, limit: float, note: Callable[[str], None]
) -> tuple[list[Step], str]:
    """Raise the rate step by step until the latency rises or the time is over; return the steps, and why they ended."""
    steps: list[Step] = []
    wanted, stuck = FIRST * most, 0
    while True:
        if time.monotonic() + ROUNDS * clients / wanted > limit:
            return steps, "time is over"
        step = bench.step(1 / wanted)
        wanted *= GROWTH
        if steps and step.rate <= steps[-1].rate:
            # Other programs on the machine may have delayed the clients, so a few more steps are tried.
            stuck += 1
            if stuck == TRIES:
                return steps, "clients cannot send faster"
            continue
        stuck = 0
        steps.append(step)
        note(f"{step.rate:.4g} updates a second: {1e3 * step.seconds:.4g} ms each")
        if step.seconds >= SIGNIFICANT * steps[0].seconds:
            return steps, "the time of an update rose"


def _knee(steps: Sequence[Step]) -> Knee:
    try:
        return wire.decode(Knee, _core.tree_knee(wire.encode(steps), SIGNIFICANT))
    except _core.CoreError as error:
        raise RoundError(f"the time was too short: {error}", "Give more --seconds, or a smaller --model") from error


def _folded(folds: Sequence[WorkSpan], clients: int) -> float:
    """Return the mean, over all updates, of the time at which an update was in the sums.

    If each worker folds its own range of every update, it is the mean of the slowest worker.
    """
    ends: dict[int, list[float]] = defaultdict(list)
    for one in folds:
        ends[one.worker] += [one.end] * one.updates
    shared = sum(map(len, ends.values())) > clients
    groups = list(ends.values()) if shared else [[end for own in ends.values() for end in own]]
    return max(sum(own) / len(own) for own in groups)


def _costs(passes: Sequence[tuple[int, float]], size: int, share: float, handover: float | None) -> CostsSection:
    """Return the costs of a node's work, in bytes a second, and ``hand_over`` in seconds.

    A pass of n updates takes n * bytes / fold + bytes / sums seconds. Two medians give both rates: those of the passes
    with the fewest and with the most updates. ``socket`` is measured on a loopback connection.
    """
    of_n: dict[int, list[float]] = defaultdict(list)
    for updates, seconds in passes:
        if updates <= PASS:
            of_n[updates].append(seconds)
    points = sorted((updates, median(times)) for updates, times in of_n.items())
    (few, short), (many, long) = points[0], points[-1]
    slope = (long - short) / (many - few) if many > few else short / few
    rest = short - few * slope
    costs: dict[str, float] = {}
    if slope > 0:
        costs["fold"] = max(1, round(size * share / slope))
    if slope > 0 and rest > 0 and many > few:
        costs["sums"] = max(1, round(size * share / rest))
    if handover is not None:
        costs["hand_over"] = round(handover, 9)
    socket = loopback(size, 1)
    if socket is not None:
        costs["socket"] = max(1, round(socket.raw_bytes_per_second))
    return CostsSection.model_validate(costs)


def _share(plan: Plan) -> float:
    """Return the share of an update that one worker folds: less than 1 if each has a range of its own."""
    return 1 / live.workers(plan) if split(plan.tree or TreeSection()) == "ranges" else 1.0


def _clients(plan: Plan, size: int) -> int:
    """Return how many clients send: the plan's number, or else as many as the memory allows, at most ``CLIENTS``.

    A client takes memory for three updates: its own, and two places in the pool.
    """
    if plan.job.clients == 1 and "clients" in plan.job.model_fields_set:
        raise PlanError("with one client there is no rate at which updates arrive", "Give --clients; at least two")
    room = int(SHARE * machine.memory_bytes()["available"] / (3 * size))
    requested = plan.job.clients if "clients" in plan.job.model_fields_set else None
    if room < (requested or 2):
        raise PlanError(
            f"there is memory for {room} updates of {size} bytes", "Take a smaller --model, or fewer --clients"
        )
    return requested or min(CLIENTS, room)


@contextmanager
def _bench(plan: Plan, clients: int, limit: float) -> Iterator[Bench]:
    """Start a node and its clients, and end both after the block."""
    party = server_party(plan)
    trust, member = links.local_trust(plan.security, URL)
    options = {**server_options(plan, trust), **live.options(plan), "expected": clients, "enough": clients}
    own = wire.encode(client_options(plan, member, seed=plan.job.seed))
    server = _core.Server(party.arena, URL, wire.encode(options))
    threads: list[threading.Thread] = []
    over = threading.Event()
    try:
        for place in range(clients):
            arena = _core.Arena(party.arena.layout)
            client = _core.Client(server.address, f"client-{place}", own, arena)
            threads.append(threading.Thread(target=_send, args=(client, place, over), daemon=True))
            threads[-1].start()
        while server.wait(clients, WAIT_SLICE) < clients:
            if time.monotonic() > limit:
                raise RoundError("clients of this process did not join in time", "Give more --seconds")
        yield Bench(server, clients, limit)
    finally:
        over.set()
        server.close("the calibration is over")
        for thread in threads:
            thread.join()


def _send(client: _core.Client, place: int, over: threading.Event) -> None:
    """Run a client, in a thread: send an update in each round at this client's time, until ``over`` or the end."""
    try:
        client.join()
        while (task := client.next()) is not None:
            number, text = task
            times = wire.decode(RoundTimes, text)
            if over.wait(max(0.0, times.begin + place * times.gap - time.monotonic())):
                return
            if client.submit(number, 1.0, "{}") == "done":
                return
    except _core.CoreError:  # the server has closed: the main thread raises the reason
        return
