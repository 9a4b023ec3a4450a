"""What a job on a graph came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thalweg.job.session import Session
    from thalweg.plan import Plan
    from thalweg.record import RunRecord


@dataclass(frozen=True)
class GraphResult:
    """What a job on a graph came to. Iterations are in the record; ``gone`` are nodes that ended early, each with why.

    ``seconds`` and ``exchange_seconds`` are spreads over all iterations of all nodes; ``accuracy`` is of the nodes'
    models where they were evaluated last. ``drift`` is a mean over iterations, ``disagreement`` that of the last one.
    """

    plan: Plan
    record: RunRecord
    gone: Mapping[str, str]
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
        reports: Mapping[str, Mapping[str, Any]],
        gone: Mapping[str, str],
        network: Session | None,
    ) -> GraphResult:
        """Return what the record of a run comes to; ``reports`` are the last words of its nodes."""
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
            # Of an iteration that one node alone was in, there is none.
            disagreement = disagreement if entry["disagreement"] is None else entry["disagreement"]
            found = [node["evaluation"].get("accuracy") for node in nodes if node["evaluation"]]
            accuracy = spread([one for one in found if one is not None], "mean", "std") or accuracy
        peaks = [report["peak_rss_bytes"] for report in reports.values() if report.get("peak_rss_bytes")]
        return cls(
            plan=plan,
            record=record,
            gone=gone,
            iterations=count,
            seconds=spread(seconds),
            exchange_seconds=spread(exchange),
            chunks_used=used / expected if expected else None,
            bytes_sent=sent,
            accuracy=accuracy,
            drift=sum(drifts) / len(drifts) if drifts else None,
            disagreement=disagreement,
            peak=max(peaks, default=None),
            emulation="none" if network is None else network.emulation,
            emulation_reason=None if network is None else network.reason,
        )

    def table(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints. Times are in seconds, sizes in bytes, accuracy is 0 to 1."""
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


def spread(values: Iterable[float], *names: str) -> dict[str, float] | None:
    """Return mean, median and population standard deviation, or those named; None of no values."""
    import numpy as np

    known = np.asarray(values if hasattr(values, "__len__") else list(values), dtype=np.float64)
    if not known.size:
        return None
    found = {"mean": known.mean(), "median": np.median(known), "std": known.std()}
    return {name: float(found[name]) for name in names or found}
