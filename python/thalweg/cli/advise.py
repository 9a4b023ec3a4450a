"""``thalweg advise``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thalweg.ui.output import Json, output
from thalweg.ui.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from thalweg.advise.judge import Answer
    from thalweg.advise.values import Advice, Cost, MeasuredCondition, Nearest, Way
    from thalweg.report.values import Spread
    from thalweg.ui.comparing import Comparison


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

        advice = advise(Question(network, model, clients, stress), record or [])
        emit(advice)
    if as_json:
        return
    for note in advice.notes:
        typer.echo(f"note: {note}", err=True)
    if not plan and advice.nearest is not None:
        _show(advice, advice.nearest)
        return
    if not plan:
        typer.echo(f"{_why_nothing(advice)}; this bench plan would measure it (thalweg bench PLAN.toml):", err=True)
    typer.echo(advice.plan, nl=False)


def _why_nothing(advice: Advice) -> str:
    for path, why in advice.left_out.items():
        typer.echo(f"left out: {path}: {why}", err=True)
    return "no records were given" if not advice.records and not advice.left_out else "no record can answer this"


def _show(advice: Advice, nearest: Nearest) -> None:
    from thalweg.ui import terminal

    if advice.verdict is not None:
        typer.echo(f"{advice.verdict.sentence}\n")
    typer.echo("communication of a round, median over runs:")
    for line in _chart(nearest.transports):
        typer.echo(f"  {line}")
    console = terminal.console()
    console.print(_transports(nearest.transports))
    for row in advice.failed:
        typer.echo(
            f"failed: {row.transport}, {row.failed} of {row.runs} runs, {row.condition}: {'; '.join(row.reasons)}"
        )
    typer.echo(f"asked: {advice.asked.condition}")
    typer.echo(f"nearest measured: {nearest.condition} (emulation: {nearest.emulation})")
    for difference in nearest.differences:
        typer.echo(f"  {difference}")
    if advice.answers is not None:
        for title, answer, form in (
            ("least communication time", advice.answers.fastest, format_seconds),
            ("fewest bytes on the wire", advice.answers.least_bytes, _times_the_update),
            ("least CPU time a round", advice.answers.least_cpu, format_seconds),
            ("least memory", advice.answers.least_memory, format_bytes),
        ):
            typer.echo(f"{title}: {'not known' if answer is None else _answer(answer, form)}")
    free = advice.unconstrained
    fastest = "not measured" if free is None else f"{_answer(free.answer, format_seconds)} ({free.condition})"
    typer.echo(f"fastest with no limits at all: {fastest}")
    if len(advice.conditions) > 1:
        console.print(_conditions(advice.conditions))
    for path, why in advice.left_out.items():
        typer.echo(f"left out: {path}: {why}", err=True)
    if advice.cost is not None:
        _show_cost(advice.cost)


def _chart(rows: Sequence[Way]) -> list[str]:
    """Return bars of the transports' communication, the fastest first and those that failed last."""
    from thalweg.bench.show import times
    from thalweg.ui import terminal

    known = [(row.transport, row.communication_seconds) for row in rows if row.communication_seconds is not None]
    known.sort(key=lambda pair: pair[1].median)
    bars: list[tuple[str, float | None, str]] = [(name, spread.median, times(spread)) for name, spread in known]
    bars += [
        (row.transport, None, f"failed, {row.failed} of {row.failed + row.runs} runs")
        for row in rows
        if row.communication_seconds is None
    ]
    return terminal.bars(bars)


def _transports(rows: Sequence[Way]) -> Table:
    from thalweg.bench.show import runs, times
    from thalweg.ui import terminal

    made = terminal.table(
        "transport", "runs", "communication", "wire/update", "CPU a round", "memory", "resent", "broker"
    )
    for row in rows:
        made.add_row(
            row.transport,
            runs(row.runs, row.failed, row.incomplete_rounds),
            times(row.communication_seconds),
            _middle(row.wire_ratio, lambda value: f"{value:.3f}"),
            _middle(row.cpu_seconds, format_seconds),
            _middle(row.peak_rss_bytes, format_bytes),
            _middle(row.retransmissions, lambda value: f"{value:.0f}"),
            {True: "yes", False: "no", None: "-"}[row.broker],
        )
    return made


def _conditions(rows: Sequence[MeasuredCondition]) -> Table:
    from thalweg.ui import terminal

    made = terminal.table("measured", "runs", "fastest", "time", "next", "times as long", "sure")
    for row in rows:
        best = row.fastest
        if best is None:
            made.add_row(row.condition, str(row.runs), "-", "-", "-", "-", "-")
            continue
        made.add_row(
            row.condition,
            str(row.runs),
            best.transport,
            format_seconds(best.value),
            best.next or "-",
            "-" if best.compared is None else _factor(best.compared, ""),
            best.sure,
        )
    return made


def _times_the_update(value: float) -> str:
    return f"{value:.3f} times the update"


def _answer(answer: Answer, form: Callable[[float], str]) -> str:
    more = ""
    if answer.next is not None and answer.next_value is not None:
        more = f"; next {answer.next}, {form(answer.next_value)}"
        if answer.compared is not None and answer.compared.low is not None:
            more += f", {_factor(answer.compared, ' times as much')}"
    return f"{answer.transport}, {form(answer.value)}{more}; sure: {answer.sure} ({'; '.join(answer.why)})"


def _factor(compared: Comparison, unit: str) -> str:
    """Return how many times as much the next best transport needs, with the interval of that factor if it is known."""
    if not math.isfinite(compared.factor):
        return "-"
    factor = f"{compared.factor:.2f}{unit}"
    if compared.low is None or compared.high is None:
        return factor
    return f"{factor} ({compared.low:.2f} to {compared.high:.2f})"


def _show_cost(cost: Cost) -> None:
    from thalweg.bench.show import duration

    again, exact = cost.again, cost.as_asked
    if not again.runs:
        typer.echo("more runs of the measured conditions would not make the answer surer")
    wanted = [("more of the measured conditions", again)] if again.runs else []
    for conditions, runs in (*wanted, ("exactly the asked condition (--plan)", exact)):
        long = "not known how long" if runs.seconds is None else f"about {duration(runs.seconds)}"
        typer.echo(f"to measure {conditions}: {runs.runs} runs, {long}")


def _middle(of: Spread | None, form: Callable[[float], str]) -> str:
    return "-" if of is None else form(of.median)
