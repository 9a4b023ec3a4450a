"""``python -m benches systems``: measures the table of systems. ``scripts/check_docs.py --write`` updates its page.

Without options it runs the small matrix: one server and four clients, 1 MiB, each path, each system. It needs root,
because it makes network namespaces and control groups.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benches.systems import environments
from benches.systems.dataset import FILE
from benches.systems.driver import cells, run
from benches.systems.paths import PATHS
from benches.systems.registry import ALLREDUCE, STAR, SYSTEMS, TREE
from thalweg.bench.systems import OURS
from thalweg.sections import toml
from thalweg.ui import units


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    # By SystemExit, so that SIGTERM takes down the parties, networks and control groups too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.list:
        for name, system in SYSTEMS.items():
            print(f"{name:24} {', '.join(system.works):24} {system.obstacle() or ''}")
        return 0
    if args.install is not None:
        failed = {name: why for name in args.install or environments.names() if (why := environments.install(name))}
        for name, why in failed.items():
            print(f"{name}: {why}", file=sys.stderr)
        return 1 if failed else 0
    if args.axis:
        print(axis(args.axis))
        return 0
    events: tuple[str | None, ...] = tuple(args.event) if args.event else (None,)
    sizes = [units.parse_size(text) for text in args.size]
    systems = args.system or list(SYSTEMS)
    chosen = cells(systems, works=args.work, clients=args.clients, sizes=sizes, paths=args.path, events=events)
    run(list(chosen), turns=args.turns, rounds=args.rounds, path=args.out, resume=args.resume)
    return 0


def axis(names: Sequence[str]) -> str:
    """Return systems as the axis ``system`` of a bench plan, with thalweg first. Their work is that of a star."""
    values: list[object] = [OURS]
    for name in names:
        system = SYSTEMS[name]
        if system.environment is None or STAR not in system.works:
            raise SystemExit(f"{name} is not another system with a server and clients")
        command = [str(environments.python(system.environment)), str(system.folder / "party.py")]
        more = {"options": dict(system.options), "environ": dict(system.environ)}
        values.append({"name": name, "command": command, **{key: value for key, value in more.items() if value}})
    return toml.dumps({"system": values}).strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benches systems", description=__doc__)
    parser.add_argument("--system", action="append", choices=list(SYSTEMS), help="measure only this; may be repeated")
    parser.add_argument(
        "--work", nargs="+", choices=(STAR, ALLREDUCE, TREE), default=[STAR], help="the kinds of work; default: star"
    )
    parser.add_argument("--clients", nargs="+", type=int, default=[4], help="clients of a star, parties otherwise")
    parser.add_argument("--size", nargs="+", default=["1MiB"], help="sizes of the model")
    parser.add_argument("--path", nargs="+", choices=list(PATHS), default=list(PATHS), help="the emulated paths")
    parser.add_argument("--event", nargs="+", choices=("kill", "away"), help="measure faults instead of rounds")
    parser.add_argument("--turns", type=int, default=2, help="how often each cell is measured")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds in each turn that count")
    parser.add_argument("--out", type=Path, default=FILE, help="the data set")
    parser.add_argument("--resume", action="store_true", help="leave out the turns of cells that the data set has")
    parser.add_argument("--install", nargs="*", metavar="NAME", help="make environments from their lock files")
    parser.add_argument("--axis", nargs="+", choices=list(SYSTEMS), help="print them as an axis of a bench plan")
    parser.add_argument("--list", action="store_true", help="list the systems, and why some cannot run here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
