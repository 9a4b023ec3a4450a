"""``thalweg advise``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from thalweg.ui.output import Json, output

# The questions of an advice, by key, as they are printed.
QUESTIONS: Final = {
    "fastest": "least communication time",
    "least_bytes": "fewest bytes on the wire",
    "least_cpu": "least CPU time a round",
    "least_memory": "least memory",
}


def command(
    *,
    network: Annotated[
        str, typer.Option(metavar="NETWORK", help="As for `thalweg run`: wifi, rate=5mbit, ..., or none.")
    ],
    model: Annotated[str, typer.Option(help="vgg5, vgg8, ..., or payload:SIZE.")],
    record: Annotated[
        list[Path] | None, typer.Option(metavar="FOLDER", help="A bench, a run's record, or a folder of these.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients. Default: any.")] = None,
    stress: Annotated[str, typer.Option(help="As in a bench plan: cpu=99, network=250mbit, ..., or none.")] = "none",
    plan: Annotated[
        bool, typer.Option("--plan", help="Print only the bench plan that would answer the question.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Recommend a transport from measured records.

    Also print how sure that is, and how long more measurements would take. Without records, print the bench plan that
    would measure it.
    """
    with output(as_json=as_json) as emit:
        from thalweg.advise import Question, advise

        found = advise(Question(network, model, clients, stress), record or [])
        emit(found)
    if as_json:
        return
    for note in found["notes"]:
        typer.echo(f"note: {note}", err=True)
    if not plan and found["nearest"] is not None:
        _show(found)
        return
    if not plan:
        typer.echo(f"{_why_nothing(found)}; this bench plan would measure it (thalweg bench PLAN.toml):", err=True)
    typer.echo(found["plan"], nl=False)


def _why_nothing(found: dict[str, Any]) -> str:
    for path, why in found["left_out"].items():
        typer.echo(f"left out: {path}: {why}", err=True)
    return "no records were given" if not found["records"] and not found["left_out"] else "no record can answer this"


def _show(found: dict[str, Any]) -> None:
    from thalweg.ui import terminal

    question, nearest = found["asked"], found["nearest"]
    typer.echo(f"{found['verdict']['sentence']}\n")
    typer.echo("communication of a round, median over runs:")
    for line in _chart(nearest["transports"]):
        typer.echo(f"  {line}")
    console = terminal.console()
    console.print(_transports(nearest["transports"]))
    for row in found["failed"]:
        typer.echo(f"failed: {row['transport']}, {_counted(row)}, {row['condition']}: {'; '.join(row['reasons'])}")
    typer.echo(f"asked: {question['condition']}")
    typer.echo(f"nearest measured: {nearest['condition']} (emulation: {nearest['emulation']})")
    for difference in nearest["differences"]:
        typer.echo(f"  {difference}")
    for key, title in QUESTIONS.items():
        answer = found["answers"][key]
        typer.echo(f"{title}: {'not known' if answer is None else _answer(key, answer)}")
    free = found["unconstrained"]
    fastest = "not measured" if free is None else f"{_answer('fastest', free)} ({free['condition']})"
    typer.echo(f"fastest with no limits at all: {fastest}")
    if len(found["conditions"]) > 1:
        console.print(_conditions(found["conditions"]))
    for path, why in found["left_out"].items():
        typer.echo(f"left out: {path}: {why}", err=True)
    _show_cost(found["cost"])


def _counted(row: dict[str, Any]) -> str:
    return f"{row['failed']} of {row['runs']} runs"


def _chart(rows: list[dict[str, Any]]) -> list[str]:
    """Return bars of the transports' communication, the fastest first and those that failed last."""
    from thalweg.bench.show import times
    from thalweg.ui import terminal

    known = [row for row in rows if row["communication_seconds"] is not None]
    known.sort(key=lambda row: row["communication_seconds"]["median"])
    bars: list[tuple[str, float | None, str]] = [
        (row["transport"], row["communication_seconds"]["median"], times(row["communication_seconds"])) for row in known
    ]
    bars += [(row["transport"], None, f"failed, {_counted_rows(row)}") for row in rows if row not in known]
    return terminal.bars(bars)


def _counted_rows(row: dict[str, Any]) -> str:
    return _counted({"failed": row["failed"], "runs": row["failed"] + row["runs"]})


def _transports(rows: list[dict[str, Any]]) -> Any:
    from thalweg.bench.show import runs, times
    from thalweg.ui import terminal
    from thalweg.ui.units import format_bytes, format_seconds

    made = terminal.table(
        "transport", "runs", "communication", "wire/update", "CPU a round", "memory", "resent", "broker"
    )
    for row in rows:
        made.add_row(
            row["transport"],
            runs({**row, "repetitions": row["runs"]}),
            times(row["communication_seconds"]),
            _middle(row["wire_ratio"], lambda value: f"{value:.3f}"),
            _middle(row["cpu_seconds"], format_seconds),
            _middle(row["peak_rss_bytes"], format_bytes),
            _middle(row["retransmissions"], lambda value: f"{value:.0f}"),
            {True: "yes", False: "no", None: "-"}[row["broker"]],
        )
    return made


def _conditions(rows: list[dict[str, Any]]) -> Any:
    from thalweg.ui import terminal
    from thalweg.ui.units import format_seconds

    made = terminal.table("measured", "runs", "fastest", "time", "next", "times as long", "sure")
    empty: dict[str, Any] = {
        "transport": "-",
        "value": None,
        "next": None,
        "factor": None,
        "low": None,
        "high": None,
        "sure": "-",
    }
    for row in rows:
        best = row["fastest"] or empty
        seconds, factor = best["value"], best["factor"]
        bounds = "" if best["low"] is None else f" ({best['low']:.2f} to {best['high']:.2f})"
        made.add_row(
            row["condition"],
            str(row["runs"]),
            best["transport"],
            "-" if seconds is None else format_seconds(seconds),
            best["next"] or "-",
            "-" if factor is None else f"{factor:.2f}{bounds}",
            best["sure"],
        )
    return made


def _answer(key: str, answer: dict[str, Any]) -> str:
    from thalweg.ui.units import format_bytes, format_seconds

    forms: dict[str, Any] = {"fastest": format_seconds, "least_cpu": format_seconds, "least_memory": format_bytes}
    form = forms.get(key, lambda value: f"{value:.3f} times the update")
    more = f"; next {answer['next']}, {form(answer['next_value'])}{_bounds(answer)}" if answer["next"] else ""
    return f"{answer['transport']}, {form(answer['value'])}{more}; sure: {answer['sure']} ({'; '.join(answer['why'])})"


def _bounds(answer: dict[str, Any]) -> str:
    """Return the text of the factor between the best and the next transport, if its bounds are known; else ""."""
    if answer["low"] is None:
        return ""
    return f", {answer['factor']:.2f} times as much ({answer['low']:.2f} to {answer['high']:.2f})"


def _show_cost(cost: dict[str, Any]) -> None:
    from thalweg.bench.show import duration

    again, exact = cost["again"], cost["as_asked"]
    if not again["runs"]:
        typer.echo("more runs of the measured conditions would not make the answer surer")
    wanted = [("more of the measured conditions", again)] if again["runs"] else []
    for conditions, runs in (*wanted, ("exactly the asked condition (--plan)", exact)):
        long = "not known how long" if runs["seconds"] is None else f"about {duration(runs['seconds'])}"
        typer.echo(f"to measure {conditions}: {runs['runs']} runs, {long}")


def _middle(of: dict[str, float] | None, form: Any) -> str:
    return "-" if of is None else str(form(of["median"]))
