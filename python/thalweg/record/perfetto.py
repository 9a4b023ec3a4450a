"""Writes rounds as a trace that https://ui.perfetto.dev and chrome://tracing open: Chrome's trace event format, JSON.

The format: "Trace Event Format", Chromium project. Each party is a thread of one process, and a client one for
each direction, as spans of a thread must not overlap. A span is an event with its begin and duration (``X``). Times are
microseconds on the run's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.errors import PlanError
from thalweg.record.spans import ROUNDS, Span, spans_of
from thalweg.ui import strict_json

if TYPE_CHECKING:
    from thalweg.record.folder import Record

_MICROSECONDS = 1e6
_PROCESS = 1


def write(record: Record, path: Path, rounds: Collection[int] = ()) -> None:
    """Write the ``rounds`` of a record, by default all. Memory does not grow with their number.

    Raises PlanError if none of them is in the record or has times, OSError, RecordError.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w") as stream:
            stream.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            head = {"name": "process_name", "ph": "M", "pid": _PROCESS, "args": {"name": record.path.resolve().name}}
            stream.write(strict_json.dumps(head))
            count = 0
            for event in _events(record, rounds):
                stream.write(f",\n{strict_json.dumps(event)}")
                count += 1
            stream.write("\n]}\n")
        if not count:
            raise PlanError("no round to export has times", f"See the rounds in {record.path}, and name one of them")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _events(record: Record, rounds: Collection[int]) -> Iterator[dict[str, Any]]:
    """Yield the events of the rounds, and before a thread's first event its name."""
    threads: dict[str, int] = {}
    for entry in record.rounds():
        spans = spans_of(entry) if not rounds or entry["round"] in rounds else None
        if spans is None:
            continue
        whole, inner = spans
        for span in (whole, *inner):
            name = f"{span.party} {span.facts.get('direction', '')}".rstrip()
            if name not in threads:
                threads[name] = len(threads)
                yield _named("thread_name", threads[name], name=name)
                # Rounds are at the top, then the others in the order of their first spans.
                yield _named("thread_sort_index", threads[name], sort_index=threads[name])
            yield _event(span, threads[name])


def _named(what: str, thread: int, **values: str | int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": thread, "args": values}


def _event(span: Span, thread: int) -> dict[str, Any]:
    return {
        "name": span.what,
        "cat": "round" if span.party == ROUNDS else "work",
        "ph": "X",
        "ts": span.start * _MICROSECONDS,
        "dur": (span.end - span.start) * _MICROSECONDS,
        "pid": _PROCESS,
        "tid": thread,
        "args": dict(span.facts),
    }
