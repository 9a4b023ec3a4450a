"""``thalweg advise``: recommends a transport for a network and a model from measured records, with its certainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from thalweg.advise import evidence, judge
from thalweg.advise.condition import Condition, Difference, condition_of, differences, distance
from thalweg.advise.evidence import Group, Measured
from thalweg.advise.values import (
    Advice,
    Answers,
    Cost,
    Failed,
    MeasuredCondition,
    Nearest,
    RequestedCondition,
    Runs,
    Unconstrained,
    Way,
)
from thalweg.bench import BenchPlan
from thalweg.bench import axes as words
from thalweg.bench.axes import PlanTable
from thalweg.plan import Plan
from thalweg.plan.least import least_seconds, update_bytes
from thalweg.report.numbers import spread
from thalweg.report.senders import bbr_by_default
from thalweg.transports import registry
from thalweg.ui.comparing import FAR, fewest_to_prove, pairs_of
from thalweg.ui.verdict import Verdict, verdict

__all__ = ["Question", "advise", "bench_plan"]

ROUNDS: Final = 3
CLIENTS: Final = 4
# Above this loss rate, unifl with Cubic clients was far slower than ltp. This comes from single runs that are not
# published.
MUCH_LOSS: Final = 0.05
# Up to this loss rate, ltp had 0.98 and 1.02 times the goodput of tcp with BBR: at 15 Mbit/s, 120 ms and bursts of
# loss, and at 200 Mbit/s, 15 ms, jitter and 0.5 % loss.
LITTLE_LOSS: Final = 0.005
NO_REASON: Final = "its record does not say why"


@dataclass(frozen=True)
class Question:
    """A question: a network as text, a model, and optionally the number of clients and stress."""

    network: str
    model: str
    clients: int | None = None
    stress: str = words.NONE

    def plan(self) -> Plan:
        """Return a plan of the question. Raises PlanError or ModelError if it is invalid."""
        return Plan.of(self.base(), "the question")

    def base(self) -> PlanTable:
        """Return the table of the plan: it transfers updates of the model's size and trains nothing."""
        table: PlanTable = {"job": {"clients": self.clients or CLIENTS, "rounds": ROUNDS}}
        words.apply(table, "model", self.model)
        words.apply(table, "network", self.network)
        words.apply(table, "stress", self.stress)
        size = update_bytes(Plan.of(table, "the question"))
        return {**table, "model": {"name": f"payload:{size}B"}}


def advise(question: Question, records: Sequence[Path]) -> Advice:
    """Answer a question from the records in ``records``: folders of runs, of benches, or of several of these.

    Raises PlanError or ModelError for an invalid question, and RecordError for a damaged bench.
    """
    plan = question.plan()
    wanted = condition_of(plan)
    runs, left_out = evidence.gather(records)
    # A transport that works only within one machine is no advice for a network.
    can = {entry.name: entry.capabilities.remote for entry in registry.transports()}
    groups = evidence.groups(run for run in runs if not wanted.topology or can.get(run.scheme, True))
    ranked = sorted(((_apart(wanted, group, question), group) for group in groups), key=lambda pair: _rank(*pair))
    ranked = [pair for pair in ranked if pair[1].compared]
    nearest = ranked[0] if ranked else None
    judged = None if nearest is None else _verdict(*nearest)
    return Advice(
        asked=RequestedCondition(
            question.network,
            question.model,
            wanted.words(clients=question.clients is not None),
            wanted.update_bytes,
            wanted.clients if question.clients is not None else None,
        ),
        notes=[*_notes(wanted), *(_hidden(nearest[1]) if nearest is not None else [])],
        records=len(runs),
        left_out=left_out,
        verdict=judged,
        failed=[row for group in groups for row in _failed(group)],
        nearest=None if nearest is None else _nearest(*nearest),
        answers=None if nearest is None else _answers(nearest[1], distance(nearest[0])),
        unconstrained=_unconstrained(ranked),
        conditions=[_condition(group, distance(apart)) for apart, group in ranked],
        cost=None if nearest is None or judged is None else _cost(plan, nearest[1], judged),
        plan=bench_plan(question).to_toml(),
    )


def bench_plan(question: Question) -> BenchPlan:
    """Return the bench plan that measures the question with every transport of this build.

    Each transport runs often enough to prove a difference between any two of them.
    """
    table = {"repetitions": _repetitions(), "impossible": "skip", "base": question.base()}
    return BenchPlan.of({**table, "matrix": {"transport": _ways()}})


def _notes(wanted: Condition) -> list[str]:
    """Return notes on the network of the question that do not depend on the records."""
    loss = max(wanted.up.loss, wanted.down.loss)
    if 0 < loss <= LITTLE_LOSS:
        limit = f"up to {LITTLE_LOSS:.1%} loss"
        return [f"{limit} tcp with BBR does as well as ltp: on two paths that nobody tuned for they were within 2 %"]
    if loss <= MUCH_LOSS:
        return []
    limit = f"beyond {MUCH_LOSS:.0%} loss"
    return [f"{limit} try ltp too: in single runs unifl was slow there with Cubic clients, and tcp with all but BBR"]


def _hidden(group: Group) -> list[str]:
    return bbr_by_default((name, run.default_congestion) for name, runs in group.runs.items() for run in runs)


def _apart(wanted: Condition, group: Group, question: Question) -> list[Difference]:
    return differences(wanted, group.condition, clients=question.clients is not None)


def _rank(apart: Sequence[Difference], group: Group) -> tuple[bool, bool, float, int]:
    """Return a group's sort key: first groups that are not far off, then those with a comparison, then near ones."""
    away = distance(apart)
    return away > FAR, len(group.compared) < 2, away, -sum(len(runs) for runs in group.runs.values())


def _verdict(apart: Sequence[Difference], group: Group) -> Verdict:
    values = {
        name: [value for value in map(evidence.communication, runs) if value is not None]
        for name, runs in group.runs.items()
    }
    failed = {name: sum(run.numbers is None for run in runs) for name, runs in group.runs.items()}
    return verdict(values, failed, distance(apart))


def _failed(group: Group) -> list[Failed]:
    """Return the transports with failed runs, and the reasons."""
    failed = []
    for name, runs in sorted(group.runs.items()):
        lost = [run for run in runs if run.numbers is None]
        if lost:
            reasons = list(dict.fromkeys(run.reason or NO_REASON for run in lost))
            failed.append(Failed(group.condition.words(), name, len(lost), len(runs), reasons))
    return failed


def _nearest(apart: Sequence[Difference], group: Group) -> Nearest:
    return Nearest(
        condition=group.condition.words(),
        update_bytes=group.condition.update_bytes,
        clients=group.condition.clients,
        emulation=group.emulation,
        distance=distance(apart),
        differences=[one.words for one in apart],
        transports=[_transport(name, runs) for name, runs in sorted(group.runs.items())],
    )


def _transport(name: str, runs: Sequence[Measured]) -> Way:
    scheme = runs[0].scheme
    done = [run for run in runs if run.numbers is not None]
    return Way(
        transport=name,
        runs=len(done),
        failed=len(runs) - len(done),
        reasons=list(dict.fromkeys(run.reason or NO_REASON for run in runs if run.numbers is None)),
        incomplete_rounds=sum(map(evidence.incomplete, done)),
        broker=next((one.capabilities.broker for one in registry.transports() if one.name == scheme), None),
        communication_seconds=spread(map(evidence.communication, done)),
        wire_ratio=spread(map(evidence.wire, done)),
        cpu_seconds=spread(map(evidence.cpu, done)),
        peak_rss_bytes=spread(map(evidence.memory, done)),
        retransmissions=spread(run.numbers.retransmissions for run in done if run.numbers is not None),
    )


def _answers(group: Group, away: float) -> Answers:
    return Answers(
        fastest=judge.least(group, evidence.communication, away),
        least_bytes=judge.least(group, evidence.wire, away),
        least_cpu=judge.least(group, evidence.cpu, away),
        least_memory=judge.least(group, evidence.memory, away),
    )


def _unconstrained(ranked: Sequence[tuple[Sequence[Difference], Group]]) -> Unconstrained | None:
    """Return which transport is fastest if nothing limits it: on loopback, with the most similar update."""
    free = next((group for _, group in ranked if group.condition.is_free), None)
    answer = None if free is None else judge.least(free, evidence.communication, 0.0)
    if free is None or answer is None:
        return None
    return Unconstrained(free.condition.words(), free.condition.update_bytes, free.condition.clients, answer)


def _condition(group: Group, away: float) -> MeasuredCondition:
    return MeasuredCondition(
        condition=group.condition.words(),
        update_bytes=group.condition.update_bytes,
        clients=group.condition.clients,
        emulation=group.emulation,
        distance=away,
        runs=sum(len(runs) for runs in group.runs.values()),
        fastest=judge.least(group, evidence.communication, away),
    )


def _cost(wanted: Plan, group: Group, judged: Verdict) -> Cost:
    """Return the cost of further runs: of the runs that the verdict needs, and of a whole bench of the question.

    A run of the bench is expected to take its network's minimum, plus the mean excess of the measured runs over theirs.
    """
    more, seconds = 0, 0.0
    beyond: list[float] = []
    for name in group.compared:
        runs = [run for run in group.runs[name] if run.numbers is not None]
        durations = [run.seconds for run in runs if run.seconds is not None]
        missing = max(0, (judged.repetitions or 0) - len(runs))
        more += missing
        seconds += missing * fmean(durations) if durations else 0.0
        beyond += [max(0.0, run.seconds - run.least_seconds) for run in runs if run.seconds is not None]
    ways = len(_ways())
    each = least_seconds(wanted) + (fmean(beyond) if beyond else 0.0)
    every = ways * _repetitions()
    return Cost(Runs(more, seconds if beyond else None), Runs(every, every * each if beyond else None))


def _repetitions() -> int:
    return fewest_to_prove(pairs_of(len(_ways())))


def _ways() -> list[str]:
    """Return the transports that a bench plan compares: those of this build that work across a network."""
    return [one.name for one in registry.transports() if one.available and one.capabilities.remote]
