"""Runs a paper's experiment, judges measurements against the paper, or updates the tables of a study."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from experiments import measured, results
from experiments.claims import rule
from experiments.edge import run as edge
from experiments.plan import FULL, ROOT, Experiment, names
from experiments.run import OUT, Judged, judge, run
from thalweg.errors import ThalwegError
from thalweg.machine.grace import interrupted_code, leave, remember_interrupts
from thalweg.ui import system
from thalweg.ui.explain import explain

# The study of Flower and thalweg over bad paths. It has no plan: most of its systems are no thalweg.
EDGE: Final = "edge"


def main() -> int:
    """Run the command; return the exit code."""
    remember_interrupts()
    try:
        arguments = _arguments()
        return int(arguments.command(arguments))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        leave(interrupted_code())
    except (ThalwegError, *system.ERRORS) as error:
        cause, hint = explain(error)
        sys.stderr.write(f"error: {cause}\nhint: {hint}\n")
        return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="print the experiments there are")
    listing.set_defaults(command=_list)
    running = commands.add_parser("run", help="run one; what was run before is not run again")
    running.add_argument("name", help="as fedcomm/fig08")
    running.add_argument("--scale", default=FULL, help="full, ci (under two minutes), or another of its plan's")
    running.add_argument("--modes", help="only these, as paper,fair")
    running.add_argument("--repetitions", type=int, help="times that each cell is run; without it as the plan says")
    running.add_argument("--out", type=Path, default=OUT, help="folder for benches and records")
    running.set_defaults(command=_run)
    judging = commands.add_parser("judge", help="print what the last full run shows of the paper's claims")
    judging.add_argument("name", help="as fedcomm/fig08")
    judging.set_defaults(command=_judge)
    tables = commands.add_parser("results", help="write the tables of a study's RESULTS.md anew")
    tables.add_argument("study", help="as fedcomm")
    tables.set_defaults(command=_results)
    for each in (listing, running, judging, tables):
        each.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    return parser.parse_args()


def _list(arguments: argparse.Namespace) -> int:
    titles = {name: Experiment.load(name).title for name in names()} | {EDGE: "where training over bad paths stops"}
    print(json.dumps(titles) if arguments.as_json else "\n".join(f"{name}: {title}" for name, title in titles.items()))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    modes = None if arguments.modes is None else arguments.modes.split(",")

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if arguments.name == EDGE:
        _say(edge.run(arguments.scale, arguments.out, note, modes or ()), as_json=arguments.as_json)
        return 0
    judged = run(arguments.name, arguments.scale, modes, arguments.out, note, repetitions=arguments.repetitions)
    _show(judged, as_json=arguments.as_json)
    return 0


def _judge(arguments: argparse.Namespace) -> int:
    if arguments.name == EDGE:
        _say(edge.judge(edge.HERE), as_json=arguments.as_json)
        return 0
    _show(judge(arguments.name, ROOT / arguments.name / measured.FILE), as_json=arguments.as_json)
    return 0


def _results(arguments: argparse.Namespace) -> int:
    file = str(results.update(arguments.study))
    print(json.dumps({"written": file}) if arguments.as_json else file)
    return 0


def _say(lines: Sequence[str], *, as_json: bool) -> None:
    print(json.dumps(list(lines)) if as_json else "\n".join(lines))


def _show(judged: list[Judged], *, as_json: bool) -> None:
    rows = [
        {
            **one.claim,
            "rule": rule(one.claim),
            "modes": {mode: {"seen": v.seen, "words": v.words, "runs": v.runs} for mode, v in one.verdicts.items()},
        }
        for one in judged
    ]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        paper = f" (paper: {row['value']:g})" if "value" in row else ""
        print(f"{row['id']}: {row['says']}{paper}; {row['rule']}")
        for mode, verdict in row["modes"].items():
            print(f"  {mode}: {verdict['seen']}: {verdict['words']}")


if __name__ == "__main__":
    sys.exit(main())
