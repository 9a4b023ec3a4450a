"""Makes the tables of docs/explanation/beside-others.md, and the README's rows, from the data set alone.

scripts/docs_tables.py calls these functions, and scripts/check_docs.py finds documents that differ from the data set.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benches.common import MIB
from benches.systems.dataset import FILE, QUIET, Line, Row, read, rows
from benches.systems.paths import PATHS
from benches.systems.registry import SYSTEMS, System
from thalweg.sections import toml

#: Why thalweg is not first in a cell, and why a system's rows failed, written by hand.
CAUSES: Final = Path(__file__).parent / "causes.toml"
#: For each kind of work, thalweg's row with its default transport between machines, tcp.
DEFAULTS: Final = ("thalweg tcp", "thalweg graph", "thalweg tasks")
#: Thalweg counts as first if its time is at most this factor times that of the fastest.
NEAR: Final = 1.05
#: What names an error in the last words of a program, and the maximum length of words in a table.
ERROR: Final = re.compile(r"[\w.]*(?:Error|Exception)\b(?=:| of ).*")
LONGEST: Final = 200
WORDS: Final = {
    "star": "A server and {clients} clients: the model down, updates up, their mean",
    "allreduce": "All-reduce of {clients} parties",
    "tree": "The model from one root to {clients} parties",
}
HEAD: Final = (
    "system", "seconds: median (least to most)", "rounds", "of the bound", "wire / least", "memory: server, client",
    "CPU s a round",
)  # fmt: skip
# Rows that are compared with each other: work, clients, size and path.
Group = tuple[str, int, int, str]


class Verdict(NamedTuple):
    """Thalweg's fastest row in a group (None if it cannot do the work), the fastest row, and whether thalweg wins."""

    group: Group
    ours: Row | None
    first: Row
    wins: bool


def group_of(row: Row) -> Group:
    return row.cell.work, row.cell.clients, row.cell.size, row.cell.path


def groups(lines: Iterable[Line]) -> list[tuple[Group, list[Row]]]:
    """Return the groups of rows that are compared with each other, without rows of faults."""
    order = {name: place for place, name in enumerate(PATHS)}
    works = {name: place for place, name in enumerate(WORDS)}
    key = lambda row: (works[row.cell.work], row.cell.clients, row.cell.size, order[row.cell.path])  # noqa: E731
    made = sorted((row for row in rows(lines) if row.cell.event is None and row.cell.system in SYSTEMS), key=key)
    return [(group_of(of[0]), of) for _, of in ((k, list(g)) for k, g in groupby(made, key))]


def tables(path: Path = FILE) -> str:
    """Return a section with a table for each work, number of clients, size and path."""
    parts = []
    for group, of in groups(read(path)):
        work, clients, size, name = group
        title = f"### {WORDS[work].format(clients=clients)}; {size // MIB} MiB; {name}: {PATHS[name].text}"
        parts.append(f"{title}\n\n{_table(HEAD, [_line(row) for row in _sorted(of)])}")
        parts += _reasons(of)
        missing = _missing(work, {row.cell.system for row in of}, name)
        if missing:
            parts.append(missing)
    return "\n\n".join(parts)


def _reasons(of: Sequence[Row]) -> list[str]:
    """Return why rows failed, for those of which ``CAUSES`` says it."""
    known = _causes().get("failed", {})
    failed = (f"{row.cell.system} on {row.cell.path}" for row in of if not row.usable)
    return [f"{name}: {known[name]}" for name in failed if name in known]


def _causes() -> dict[str, Any]:
    return toml.loads(CAUSES.read_text(), str(CAUSES)) if CAUSES.exists() else {}


def _sorted(of: Sequence[Row]) -> list[Row]:
    return sorted(of, key=lambda row: row.seconds.median if row.usable and row.seconds else float("inf"))


def _line(row: Row) -> list[str]:
    name = f"**{row.cell.system}**" if SYSTEMS[row.cell.system].ours else row.cell.system
    name += " †" if row.busy else ""
    if not row.usable or row.seconds is None:
        return [name, f"failed: {_short(row.failures)}", *[""] * 5]
    spread, bound = row.seconds, row.bound
    least = row.cell.size * {"star": 2 * row.cell.clients, "tree": row.cell.clients}.get(
        row.cell.work, 2 * (row.cell.clients - 1)
    )
    wire, cpu = row.mean("wire_bytes"), row.cpu()
    return [
        name,
        f"{number(spread.median)} ({number(spread.least)} to {number(spread.most)})",
        str(spread.repetitions),
        "" if bound is None else f"{bound / spread.median:.2f}",
        "" if wire is None else f"{wire / least:.2f}",
        f"{_mib(row.peak(server=True))}, {_mib(row.peak(server=False))}",
        "" if cpu is None else number(cpu),
    ]


def number(value: float) -> str:
    """Return seconds with three digits."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _mib(value: int | None) -> str:
    return "" if value is None else f"{value / MIB:.0f} MiB"


def _short(failures: Sequence[str]) -> str:
    """Return the line of the first failure that names an error, with the details of an RPC; else its last line."""
    lines = [line.strip() for line in "\n".join(failures[:1]).splitlines() if line.strip()]
    errors = [found[0] for line in lines if (found := ERROR.search(line))]
    details = [line for line in lines if line.startswith("details = ")]
    words = [*errors[-1:], *details[-1:]] or lines[-1:] or ["no round was measured"]
    text = " ".join(words).replace("|", "/")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _missing(work: str, measured: set[str], path: str) -> str:
    """Return a sentence for each reason why systems are missing in a table."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for system in SYSTEMS.values():
        if system.name not in measured:
            reasons[_why(system, work, path)].append(system.name)
    return "".join(f"Not in this table: {', '.join(names)} ({why}). " for why, names in reasons.items()).strip()


def _why(system: System, work: str, path: str) -> str:
    if system.unusable:
        return system.unusable
    if work not in system.works:
        return system.lacks.get(work, "it does not do this work")
    if system.paths is not None and path not in system.paths:
        return f"it works on {', '.join(system.paths)} only"
    return "not measured yet"


def verdicts(lines: Iterable[Line]) -> list[Verdict]:
    """Return the verdict on each group in which a system other than thalweg was measured.

    Thalweg wins if it is the fastest, or if its time is at most ``NEAR`` times the fastest.
    """
    found = []
    for group, of in groups(lines):
        usable = [row for row in _sorted(of) if row.usable]
        ours = next((row for row in usable if SYSTEMS[row.cell.system].ours), None)
        others = [row for row in usable if not SYSTEMS[row.cell.system].ours]
        if not others:
            continue
        first = usable[0]
        wins = ours is not None and _median(ours) <= NEAR * _median(first)
        found.append(Verdict(group, ours, first, wins))
    return found


def _median(row: Row) -> float:
    assert row.seconds is not None
    return row.seconds.median


def verdict(path: Path = FILE) -> str:
    """Return the share of cells that thalweg wins, a table of all cells, and the causes of its losses."""
    found = verdicts(read(path))
    won = sum(one.wins for one in found)
    causes = _causes()
    head = ("work", "size", "path", "thalweg's fastest", "fastest of the others", "", "why it is not first")
    body = []
    lines = read(path)
    of_group = dict(groups(lines))
    for group, ours, first, wins in found:
        work, clients, size, name = group
        other = next(row for row in _sorted(of_group[group]) if row.usable and not SYSTEMS[row.cell.system].ours)
        cause = "" if wins else causes.get(f"{work}-{clients}-{size // MIB}-{name}", "not looked into yet")
        place = "**behind**" if not wins else "first" if ours is first else "within 5 %"
        mine = "it does not do this work" if ours is None else _brief(ours)
        body.append([f"{work}, {clients}", f"{size // MIB} MiB", name, mine, _brief(other), place, str(cause)])
    if not found:
        return "Nothing is measured yet."
    default = sum(_default_wins(of_group[one.group]) for one in found)
    share = (
        "thalweg by its fastest transport is first or within 5 % in "
        f"{won} of {len(found)} cells ({won / len(found):.0%}). "
        f"By `tcp` alone it is in {default} ({default / len(found):.0%}). A cell is one work, size and path."
    )
    return f"{share}\n\n{_table(head, body)}"


def _default_wins(of: Sequence[Row]) -> bool:
    """Return whether thalweg's default takes at most 5 % longer than the fastest of the others."""
    usable = [row for row in of if row.usable]
    mine = [_median(row) for row in usable if row.cell.system in DEFAULTS]
    return bool(mine) and min(mine) <= NEAR * min(_median(row) for row in usable if not SYSTEMS[row.cell.system].ours)


def _brief(row: Row) -> str:
    return f"{row.cell.system.removeprefix('thalweg ')} {number(_median(row))} s"


def events(path: Path = FILE) -> str:
    """Return the table of what became of a round after a fault."""
    head = ("system", "a client is killed in the middle of a round", "a client's link is away for 20 s")
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows(read(path)):
        if row.cell.event is not None:
            found[row.cell.system][row.cell.event] = "; ".join(dict.fromkeys(_event(line) for line in row.lines))
    body = [
        [name, of.get("kill", "not measured yet"), of.get("away", "not measured yet")]
        for name, of in sorted(found.items(), key=lambda one: list(SYSTEMS).index(one[0]))
    ]
    return _table(head, body) if body else "Nothing is measured yet."


def _event(line: Line) -> str:
    event = line.outcome.event
    if event is None:
        return f"failed before: {_short([line.outcome.failure or ''])}"
    seconds = number(event["seconds"])
    return {
        "went on": f"the round ended after {seconds} s with a correct mean",
        "wrong": f"the round ended after {seconds} s with a wrong mean",
        "hung": f"nothing happened within {seconds} s",
        "ended": f"a party failed after {seconds} s: {_short([event.get('words', '')])}",
    }[event["result"]]


def conditions(path: Path = FILE) -> str:
    """Return what was measured, when, and on which machine."""
    lines = read(path)
    if not lines:
        return "Nothing is measured yet."
    machines = dict.fromkeys(
        f"{line.machine['cpu']}, {line.machine['cores']} cores, {line.machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{line.machine['kernel']}" for line in lines
    )  # fmt: skip
    busy = sum(line.busy for line in lines)
    nice = sum(line.nice > 0 for line in lines)
    kinds = {(PATHS[line.cell.path].emulated, line.congestion or "not noted") for line in lines}
    control = ", ".join(f"{name} on {'emulated paths' if emulated else 'loopback'}" for emulated, name in sorted(kinds))
    debug = sum(line.debug for line in lines)
    versions = dict.fromkeys(line.version for line in lines)
    when = f"from {min(line.time for line in lines)} to {max(line.time for line in lines)} UTC"
    others = [line.others for line in lines if line.others is not None]
    quiet = [
        f"† marks rows with runs on a busy machine ({busy} runs): others used over {QUIET} of a core, or it is unknown."
    ]
    if others:
        usual, most = median(others), max(others)
        quiet.insert(
            0,
            f"In the second before a run, other programs used {usual:.2f} of a core (median), and {most:.2f} at most.",
        )
    found = [
        f"{len(lines)} runs, {when}.",
        f"Machine: {'; '.join(machines)}.",
        " ".join(quiet),
        *([f"Runs with a lowered priority: {nice}; these take longer."] if nice else []),
        f"TCP's congestion control: {control}.",
        f"Runs of thalweg in a build for debugging, which is slower: {debug}.",
        f"Versions: {', '.join(versions)}.",
    ]  # fmt: skip
    return "\n".join(f"- {line}" for line in found)


def summary(path: Path = FILE) -> str:
    """Return the README's table: for each path of the small star, thalweg beside the fastest other and Flower."""
    head = ("path", "thalweg's fastest", "fastest of the others", "Flower")
    body = []
    for (work, clients, size, name), of in groups(read(path)):
        if (work, clients, size) != ("star", 4, MIB):
            continue
        usable = [row for row in _sorted(of) if row.usable]
        ours = next((row for row in usable if SYSTEMS[row.cell.system].ours), None)
        other = next((row for row in usable if not SYSTEMS[row.cell.system].ours), None)
        flower = next((row for row in usable if row.cell.system == "Flower"), None)
        shown = ["" if row is None else _brief(row) for row in (ours, other, flower)]
        body.append([f"{name}: {PATHS[name].text}", *shown])
    return _table(head, body) if body else "Nothing is measured yet."


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in line)} |" for line in lines
    )
