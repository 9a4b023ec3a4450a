"""``thalweg doctor``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from thalweg.cli import effects
from thalweg.errors import PlanError
from thalweg.ui.output import Json, output

if TYPE_CHECKING:
    from rich.console import Console

    from thalweg.doctor import CertificateAge, Check, Report, Throughput, Way


# The parameters that can be given with --transports.
LISTING: Final = frozenset({"transports", "as_json"})


def command(
    context: typer.Context,
    url: Annotated[str | None, typer.Argument(help="Peer where `thalweg doctor --serve URL` runs.")] = None,
    *,
    serve: Annotated[
        str | None, typer.Option(metavar="URL", help="Answer the probes of others at this address.")
    ] = None,
    pki: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder of `thalweg pki init`: for --serve, or else to see when its certificates expire.",
        ),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="NAME.token, for a peer that encrypts.")] = None,
    cert: Annotated[Path | None, typer.Option(help="NAME.crt, likewise.")] = None,
    key: Annotated[Path | None, typer.Option(help="NAME.key, likewise.")] = None,
    size: Annotated[str, typer.Option(help="How much a probe moves.")] = "64MiB",
    seconds: Annotated[float | None, typer.Option(min=0, help="How long to serve; else until Ctrl-C.")] = None,
    transports: Annotated[
        bool,
        typer.Option(
            "--transports",
            help="List the transports and what each can do. Only --json may go with it.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print what this machine can do.

    Also print what is missing, what each absence costs, and the throughput over loopback. With a URL print the
    throughput to that peer alone; --json then has all of it.
    """
    if transports:
        _transports(context, as_json=as_json)
        return
    with output(as_json=as_json) as emit:
        from thalweg import doctor
        from thalweg.doctor import probing

        if serve is not None:
            emit(probing.serve(serve, pki, seconds, _note))
            return
        amount = probing.amount(size)
        options = probing.client_options(url, token_file, cert, key)
        path = doctor.path_loopback(amount) if url is None else doctor.path_to(url, options, amount)
        report = doctor.report(path, None if pki is None else Path(pki))
        emit(report)
    if not as_json:
        _show(report, peer=url is not None)


def _transports(context: typer.Context, *, as_json: bool) -> None:
    """List the transports. Raises PlanError for any other option than --json."""
    with output(as_json=as_json) as emit:
        from thalweg.transports import registry

        for name in effects.names_given(context):
            if name in ("url", "serve"):
                raise PlanError("--transports measures nothing", "Leave the URL and --serve out")
            if name not in LISTING:
                effects.refuse(name, "with --transports")
        entries = registry.transports()
        emit(entries)
    if not as_json:
        from thalweg.ui import terminal
        from thalweg.wire import table_of

        table = terminal.table("name", "available", "capabilities", "options")
        for entry in entries:
            can = [
                name if value is True else f"{name} {value}"
                for name, value in table_of(entry.capabilities).items()
                if value
            ]
            own = ", ".join(setting.name for setting in entry.settings)
            table.add_row(entry.name, "yes" if entry.available else f"no: {entry.reason}", ", ".join(can), own)
        terminal.console().print(table)


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _show(report: Report, *, peer: bool) -> None:
    """Print a report. Of a probe of a ``peer``, leave out what this machine can do."""
    from thalweg.ui import terminal

    console = terminal.console()
    if not peer:
        _show_machine(console, report)
        _show_checks(console, report.checks)
    _show_certificates(console, report.certificates)
    _show_path(console, report.path)


def _print(console: Console, text: str) -> None:
    """Print a line. A terminal gets it wrapped between words, a file or a pipe whole."""
    console.print(text, soft_wrap=not console.is_terminal)


def _show_certificates(console: Console, certificates: Sequence[CertificateAge]) -> None:
    from thalweg.ui import terminal

    if not certificates:
        return
    table = terminal.table("certificate", "name", "role", "expires", "state")
    for one in certificates:
        state = f"in {one.days:.0f} days" if one.days > 0 else "has expired: thalweg pki renew"
        state = state if one.revoked is None else f"revoked since {one.revoked}"
        table.add_row(one.file, one.name, one.role or "authority", one.expires, state)
    console.print(table)


def _show_machine(console: Console, report: Report) -> None:
    from thalweg.ui.units import format_bytes

    machine, tcp = report.machine, report.tcp
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items() if version)
    _print(console, f"thalweg {report.thalweg.version}; {versions}")
    memory = machine.memory_bytes
    _print(
        console,
        f"{report.kernel}, {machine.cpu}, {machine.cores} cores, "
        f"{format_bytes(memory.get('available', 0))} of {format_bytes(memory.get('total', 0))} memory free",
    )
    _print(console, f"TCP congestion control {tcp.congestion} (has {', '.join(tcp.available)})")
    _print(console, ", ".join(f"{name} {value}" for name, value in tcp.buffers.items()))
    for advice in report.advice:
        _print(console, f"note: {advice}")


def _show_checks(console: Console, checks: Sequence[Check]) -> None:
    from thalweg.ui import terminal

    table = terminal.table("what", "here", "seen", "cost")
    for check in checks:
        cost = "" if check.available else check.cost
        table.add_row(check.name, "yes" if check.available else "no", check.detail, cost)
    console.print(table)


def _show_path(console: Console, path: Throughput) -> None:
    from thalweg.ui.units import format_rate, format_seconds

    ours, trip = 8 * path.thalweg_bytes_per_second, format_seconds(path.control_round_trip_seconds)
    if path.raw_bytes_per_second is None:
        rates = f"thalweg {format_rate(ours)}, no raw TCP"
    else:
        raw = 8 * path.raw_bytes_per_second
        rates = f"raw TCP {format_rate(raw)}, thalweg {format_rate(ours)} ({100 * ours / raw:.0f} %)"
    _print(console, f"{path.target}: {rates}, control message there and back {trip}")
    if path.carriers is not None:
        control, chunks = path.carriers.control.upper(), path.carriers.chunks.upper()
        _print(console, f"this link's control messages go over {control}, its chunks over {chunks}")
    if path.ways is not None:
        ways = f"{_way('UDP', path.ways.udp)}; {_way('TCP', path.ways.tcp)}"
        _print(console, f"to that port: {ways}")


def _way(name: str, way: Way) -> str:
    from thalweg.ui.units import format_seconds

    if way.seconds is not None:
        return f"{name} passes, with an answer after {format_seconds(way.seconds)}"
    return f"{name} does not pass: {way.reason}"
