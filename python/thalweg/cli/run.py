"""``thalweg run``."""

from __future__ import annotations

from typing import Annotated

import typer

from thalweg.cli.plans import (
    AppName,
    Clients,
    DataRoot,
    LoginFile,
    Options,
    PlanFile,
    Record,
    Resume,
    Rounds,
    Tensors,
    assemble,
)
from thalweg.ui.output import Json, output

Network = Annotated[
    str | None,
    typer.Option(metavar="NETWORK", help="Emulated links: wifi, wan, ..., rate=100mbit,rtt=40ms,loss=1%, or both."),
]
Deterministic = Annotated[
    bool | None, typer.Option("--deterministic", help="The same bits whatever the order of arrival.")
]


def command(
    plan: PlanFile = None,
    *,
    transport: Annotated[str | None, typer.Option(metavar="URL", help="tcp, memory, or scheme://host:port.")] = None,
    app: AppName = None,
    tensors: Tensors = None,
    clients: Clients = None,
    rounds: Rounds = None,
    model: Annotated[str | None, typer.Option(help="vgg5, vgg8, lenet, ..., or payload:SIZE to only move it.")] = None,
    data: Annotated[str | None, typer.Option(help="digits, mnist, fashion-mnist or cifar10.")] = None,
    data_root: DataRoot = None,
    partition: Annotated[str | None, typer.Option(help="contiguous, iid, kshard:N or dirichlet:A.")] = None,
    congestion: Annotated[str | None, typer.Option(help="Congestion control: cubic, reno, bbr, ...")] = None,
    streams: Annotated[int | None, typer.Option(help="Parallel connections of one link.")] = None,
    fanout: Annotated[str | None, typer.Option(help="The model to clients: concurrent or sequential.")] = None,
    gather: Annotated[str | None, typer.Option(help="Updates from clients: concurrent or in-order.")] = None,
    compute: Annotated[str | None, typer.Option(metavar="TIME", help="Time a payload's clients compute: 2s.")] = None,
    option: Options = None,
    login_file: LoginFile = None,
    partial: Annotated[str | None, typer.Option(help="What a broken-off update counts: discard or keep.")] = None,
    precision: Annotated[str | None, typer.Option(help="Accumulator: f32, f64 or exact.")] = None,
    deterministic: Deterministic = None,
    enough: Annotated[int | None, typer.Option(help="Updates that a round needs at least.")] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds after which a round ends with what is in.")] = None,
    network: Network = None,
    topology: Annotated[str | None, typer.Option(help="star, bottleneck, dumbbell or mesh.")] = None,
    emulator: Annotated[str | None, typer.Option(help="auto, packet, message or none.")] = None,
    throttle: Annotated[str | None, typer.Option(metavar="RATE", help="Rate of each link: 20mbit, 3g, ...")] = None,
    tls: Annotated[str | None, typer.Option(help="auto, on or off.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    record: Record = None,
    resume: Resume = None,
    as_json: Json = False,
) -> None:
    """Run a job on this machine.

    The server is this process, each client one of its own.
    """
    overrides: dict[str, object] = {
        "app.object": app,
        "model.tensors": tensors or None,
        "transport.url": transport,
        "job.clients": clients,
        "job.rounds": rounds,
        "model.name": model,
        "data.name": data,
        "data.root": data_root,
        "data.partition": partition,
        "transport.congestion": congestion,
        "transport.streams": streams,
        "transport.fanout": fanout,
        "transport.gather": gather,
        "training.compute": compute,
        "aggregation.partial": partial,
        "aggregation.precision": precision,
        "aggregation.deterministic": deterministic,
        "job.enough": enough,
        "job.deadline": deadline,
        "network": network,
        "network.topology": topology,
        "network.emulator": emulator,
        "layers.throttle": throttle,
        "security.tls": tls,
        "job.seed": seed,
        "record.folder": record,
        "security.login_file": None if login_file is None else str(login_file),
    }
    with output(as_json=as_json) as emit:
        from thalweg.job.run import run
        from thalweg.transports import registry
        from thalweg.ui.progress import progress_on_stderr

        own = {f"transport.options.{key}": value for key, value in registry.own_options(option or ()).items()}
        result = run(assemble(plan, resume, overrides | own), progress_on_stderr(), resume=resume)
        emit(result.table())
    if not as_json:
        from thalweg.cli.summary import show

        show(result)
