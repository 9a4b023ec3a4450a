"""The result of a job on a graph, computed from its record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thalweg.job.common.session import Session
    from thalweg.machine import Usage
    from thalweg.outcome import GraphSummary
    from thalweg.plan import Plan
    from thalweg.record import RunRecord


@dataclass(frozen=True)
class GraphResult:
    """The result of a job on a graph. ``lost``: nodes that ended early, each with the reason.

    ``seconds`` and ``exchange_seconds`` are mean, median and standard deviation over all iterations of all nodes.
    ``accuracy`` has mean and standard deviation over the nodes' models in the last iteration with an evaluation.
    ``drift`` is the mean over iterations. ``disagreement`` is the value of the last iteration that has one.
    """

    plan: Plan
    record: RunRecord
    lost: Mapping[str, str]
    iterations: int
    seconds: Mapping[str, float] | None
    exchange_seconds: Mapping[str, float] | None
    chunks_used: float | None
    bytes_sent: int
    accuracy: Mapping[str, float] | None
    drift: float | None
    disagreement: float | None
    peak: int | None
    emulation: str
    emulation_reason: str | None

    @classmethod
    def of(
        cls,
        plan: Plan,
        record: RunRecord,
        reports: Mapping[str, Usage],
        lost: Mapping[str, str],
        network: Session | None,
    ) -> GraphResult:
        """Compute the result from a run's record. ``reports`` are the final reports of its nodes."""
        from array import array

        seconds, exchange, drifts = array("d"), array("d"), array("d")
        used = expected = sent = count = 0
        accuracy: dict[str, float] | None = None
        disagreement: float | None = None
        for entry in record.rounds():
            count += 1
            nodes = list(entry["nodes"].values())
            seconds.extend(node["seconds"] for node in nodes)
            exchange.extend(node["exchange_seconds"] for node in nodes)
            used += sum(node["chunks_used"] for node in nodes)
            expected += sum(node["chunks_expected"] for node in nodes)
            sent += entry["bytes_up"]
            drifts.extend([] if entry["drift"] is None else [entry["drift"]])
            # The disagreement is None in an iteration in which only one node took part.
            disagreement = disagreement if entry["disagreement"] is None else entry["disagreement"]
            accuracies = [node["evaluation"].get("accuracy") for node in nodes if node["evaluation"]]
            accuracy = statistics_of([one for one in accuracies if one is not None], "mean", "std") or accuracy
        peaks = [report.peak_rss_bytes for report in reports.values() if report.peak_rss_bytes]
        return cls(
            plan=plan,
            record=record,
            lost=lost,
            iterations=count,
            seconds=statistics_of(seconds),
            exchange_seconds=statistics_of(exchange),
            chunks_used=used / expected if expected else None,
            bytes_sent=sent,
            accuracy=accuracy,
            drift=sum(drifts) / len(drifts) if drifts else None,
            disagreement=disagreement,
            peak=max(peaks, default=None),
            emulation="none" if network is None else network.emulation,
            emulation_reason=None if network is None else network.reason,
        )

    def table(self) -> GraphSummary:
        """Return what ``--json`` prints. Times are in seconds, sizes in bytes, accuracy is 0 to 1."""
        return {
            "graph": self.plan.job.graph,
            "nodes": self.plan.job.clients,
            "iterations": self.iterations,
            "iteration_seconds": self.seconds,
            "exchange_seconds": self.exchange_seconds,
            "chunks_used": self.chunks_used,
            "bytes_sent": self.bytes_sent,
            "accuracy": self.accuracy,
            "drift": self.drift,
            "disagreement": self.disagreement,
            "peak_rss_bytes": self.peak,
            "record": str(self.record.path),
        }


def statistics_of(values: Iterable[float], *names: str) -> dict[str, float] | None:
    """Return mean, median and population standard deviation, or only those in ``names``; None without values."""
    import numpy as np

    numbers = np.asarray(values if hasattr(values, "__len__") else list(values), dtype=np.float64)
    if not numbers.size:
        return None
    statistics = {"mean": numbers.mean(), "median": np.median(numbers), "std": numbers.std()}
    return {name: float(statistics[name]) for name in names or statistics}
