"""``thalweg lab``: emulated networks for any program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from thalweg.cli import guest
from thalweg.ui.output import Json, output

if TYPE_CHECKING:
    from rich.console import Console

    from thalweg.lab.client import RunningLab
    from thalweg.lab.status import Status
    from thalweg.network.spec import Spec

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Emulated networks for any program (Linux, as root)."
)
app.add_typer(guest.app, name="guest")
DEFAULT_CLIENTS: Final = 2
OWN_LAB: Final = "THALWEG_LAB"

PlanFile = Annotated[Path | None, typer.Option("--plan", metavar="PLAN.toml", help="Plan whose [network] it is.")]
Network = Annotated[
    str | None, typer.Option(metavar="NETWORK", help="wifi, wan, ..., rate=100mbit,rtt=40ms,loss=1%, or both.")
]
Topology = Annotated[str | None, typer.Option(help="star, bottleneck, dumbbell, mesh, or a graph's word as ring.")]
Clients = Annotated[int | None, typer.Option(min=1, help="Hosts besides the server. Default: the plan's, or 2.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the links.")]
Name = Annotated[str | None, typer.Option(help="Name of the new lab; else the profile's, with a number if taken.")]
LabName = Annotated[str | None, typer.Option("--lab", metavar="NAME", help="A lab that runs; else the only one.")]
Host = Annotated[str, typer.Option(metavar="HOST", help="server, client-1 (or client1), ...")]


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  thalweg lab {line}" for line in lines)


@app.command("up", epilog=_examples("up --network wan", "up --network rate=20mbit,loss=1% --clients 8 --name slow"))
def up(
    *,
    network: Network = None,
    plan: PlanFile = None,
    clients: Clients = None,
    topology: Topology = None,
    seed: Seed = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Start a lab and leave it running until `thalweg lab down`."""
    with output(as_json=as_json) as emit:
        _clean()
        lab = _start(Request(plan, network, topology, clients, seed), name, attached=False)
        emit({"name": lab.name, "pid": lab.state.pid, "hosts": _hosts(lab)})
    if not as_json:
        typer.echo(lab.name)
        _say(f"hosts: {', '.join(lab.hosts)}")
        _say(f"next: thalweg lab exec --lab {lab.name} --host client-1 -- PROGRAM")


@app.command("shell", epilog=_examples("shell --network wan", "shell --network wifi --clients 4 --host server"))
def shell(
    *,
    network: Network = None,
    plan: PlanFile = None,
    clients: Clients = None,
    topology: Topology = None,
    seed: Seed = None,
    lab: LabName = None,
    host: Host = "client-1",
    as_json: Json = False,
) -> None:
    """Open your shell on a host of a lab. A lab that this command started ends with the shell."""
    program = os.environ.get("SHELL") or "/bin/sh"
    with output(as_json=as_json) as emit:
        _clean()
        with _lab(lab, Request(plan, network, topology, clients, seed)) as there:
            others = ", ".join(name for name in there.hosts if name != host)
            _say(f"{program} on {host} of the lab {there.name}; beside it: {others}; exit leaves it")
            from thalweg.lab import prompt

            opened = prompt.shell(program, there.name, host, there.state.folder)
            os.environ.update(opened.environment)
            code = _run(there, host, opened.command)
        emit({"lab": there.name, "host": host, "command": [program], "exit_code": code})
    raise typer.Exit(code)


@app.command(
    "exec",
    context_settings={"allow_interspersed_args": False},
    epilog=_examples(
        "exec --host server -- iperf3 -s",
        "exec --host client1 -- iperf3 -c server",
        "exec --network wan -- ping -c 3 server",
    ),
)
def execute(
    program: Annotated[list[str], typer.Argument(metavar="-- PROGRAM [ARGUMENT]...", help="What to run.")],
    *,
    network: Network = None,
    plan: PlanFile = None,
    clients: Clients = None,
    topology: Topology = None,
    seed: Seed = None,
    lab: LabName = None,
    host: Host = "client-1",
    as_json: Json = False,
) -> None:
    """Run a program on a host of a lab; its exit code is this command's.

    Hosts find each other by name. With --network, the command starts a lab and ends it after the program.
    """
    with output(as_json=as_json) as emit:
        _clean()
        with _lab(lab, Request(plan, network, topology, clients, seed)) as there:
            code = _run(there, host, program)
        emit({"lab": there.name, "host": host, "command": program, "exit_code": code})
    raise typer.Exit(code)


@app.command("status", epilog=_examples("status", "status slow --json"))
def status(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A lab; else all that run.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Show what links and hosts of labs have carried, lost and delayed."""
    with output(as_json=as_json) as emit:
        _clean()
        from thalweg.lab import state
        from thalweg.lab.client import RunningLab, statuses

        if name:
            there = RunningLab(state.find(name))
            answers = [(there, there.status())]
        else:
            answers = statuses(map(RunningLab, state.live()))
        labs = [
            {"name": lab.name, "pid": lab.state.pid, "hosts": _hosts(lab), "status": status} for lab, status in answers
        ]
        emit({"labs": labs})
    if not as_json:
        _show(answers)


@app.command("set", epilog=_examples("set client-1 loss=5%", "set '*' rate=10mbit rtt=80ms", "set client-2 down=true"))
def change(
    link: Annotated[str, typer.Argument(metavar="LINK", help="A link, as client-1; '*' for all.")],
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Keys of a link, or a profile.")],
    *,
    lab: LabName = None,
    direction: Annotated[str | None, typer.Option(help="up (client to server) or down; else both.")] = None,
    as_json: Json = False,
) -> None:
    """Change a link while it runs. Keys that are not given stay as they are."""
    with output(as_json=as_json) as emit:
        _clean()
        from thalweg.lab import changing, state
        from thalweg.lab.client import RunningLab

        there = RunningLab(state.find(lab or os.environ.get(OWN_LAB)))
        changed = changing.change(there, link, ",".join(settings), direction)
        emit({"lab": there.name, "changed": changed})
    if not as_json:
        from thalweg.lab import words

        for entry in changed:
            typer.echo(words.changed(entry))


@app.command("down", epilog=_examples("down", "down slow", "down --all"))
def down(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A lab; else the only one.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All labs that run.")] = False,
    as_json: Json = False,
) -> None:
    """End a lab and the programs inside it."""
    with output(as_json=as_json) as emit:
        reaped = _clean()
        from thalweg.lab import state
        from thalweg.lab.client import RunningLab

        ended = [RunningLab(one) for one in (state.live() if every else [state.find(name)])]
        for lab in ended:
            lab.down()
        emit({"down": [lab.name for lab in ended], "reaped": reaped})
    if not as_json:
        typer.echo(f"down: {', '.join(lab.name for lab in ended) or 'none ran'}")


def _clean() -> list[str]:
    """Clean up after killed supervisors, and print which labs were removed. Returns their names."""
    from thalweg.lab import reaper

    names = reaper.reap()
    for name in names:
        _say(f"removed what the lab {name} left, whose supervisor was killed")
    return names


class Request(NamedTuple):
    """The options of a command line that describe a new lab."""

    plan: Path | None
    network: str | None
    topology: str | None
    clients: int | None
    seed: int | None


@contextmanager
def _lab(name: str | None, request: Request) -> Iterator[RunningLab]:
    """Yield the running lab called ``name``, or a new lab, which ends with the context."""
    from thalweg.errors import PlanError
    from thalweg.lab import state
    from thalweg.lab.client import RunningLab

    new = request.network is not None or request.plan is not None
    if name is not None and new:
        raise PlanError("--lab names a lab that runs, --network and --plan start another", "Give one of them")
    if not new:
        yield RunningLab(state.find(name or os.environ.get(OWN_LAB)))
        return
    lab = _start(request, None, attached=True)
    try:
        yield lab
    finally:
        lab.down()


def _start(request: Request, name: str | None, *, attached: bool) -> RunningLab:
    from thalweg.lab import client

    spec = _spec(request)
    wanted = name or Path(spec.profile or "lab").stem
    lab = client.start(spec.text(), wanted, unique=name is None, attached=attached)
    try:
        lab.start()
    except BaseException:  # also for Ctrl-C: nobody else can end the lab, since the caller has no reference to it yet
        lab.down()
        raise
    return lab


def _spec(request: Request) -> Spec:
    """Return the requested network. Raises PlanError."""
    from thalweg.errors import PlanError
    from thalweg.plan import Plan
    from thalweg.plan.emulated import network_of

    base = Plan.of({"job": {"clients": DEFAULT_CLIENTS}}) if request.plan is None else Plan.load(request.plan)
    if base.network is None and request.network is None:
        raise PlanError("no network is given", "Give --network, as --network wan")
    overrides = {
        "network": request.network,
        "network.topology": request.topology,
        "job.clients": request.clients,
        "job.seed": request.seed,
    }
    return network_of(base.merge(overrides))


def _run(lab: RunningLab, host: str, program: Sequence[str]) -> int:
    """Run a program on a host. Returns its exit code, or 128 plus the signal that ended it, as a shell does."""
    from thalweg.lab import inside
    from thalweg.machine.grace import ENDING

    os.environ[OWN_LAB] = lab.name
    code = inside.wait(inside.popen(program, lab.host(host), lab.hosts_file))
    if -code in ENDING:
        _say("interrupted")
    return 128 - code if code < 0 else code


def _hosts(lab: RunningLab) -> dict[str, dict[str, str | None]]:
    hosts = lab.hosts.items()
    return {name: {"ipv4": host.ipv4, "ipv6": host.ipv6, "device": host.device} for name, host in hosts}


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _show(labs: Sequence[tuple[RunningLab, Status]]) -> None:
    from thalweg.ui import terminal

    console = terminal.console()
    if not labs:
        console.print("no lab runs")
    for lab, status in labs:
        _show_lab(console, lab, status)


def _show_lab(console: Console, lab: RunningLab, status: Status) -> None:
    from thalweg.lab import words
    from thalweg.ui import terminal

    relay = status.relay
    failed = "" if relay.failure is None else f"; FAILED: {relay.failure}"
    begun = "is starting" if status.elapsed is None else f"{status.elapsed:.1f} s"
    console.print(f"{lab.name}: {begun}, supervisor {lab.state.pid}{failed}", soft_wrap=True, markup=False)
    links = terminal.table(*words.HEAD[:2], caption="up: from client to server; packets since the lab began")
    for heading in words.HEAD[2:]:
        links.add_column(heading, justify="right", no_wrap=True)
    for link in status.links:
        links.add_row(*words.row(link))
    console.print(links)
    hosts = terminal.table("host", "address", "retransmitted", "buffer drops", "limiter drops", right=True)
    for name, host in status.hosts.items():
        counts = (host.retransmitted_segments, host.receive_buffer_drops, host.limiter_drops)
        hosts.add_row(name, lab.hosts[name].ipv4, *map(str, counts))
    console.print(hosts)
