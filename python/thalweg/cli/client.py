"""``thalweg client``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from thalweg.cli.plans import Options
from thalweg.ui.output import Json, output

PemFile = Path | None


def command(
    url: Annotated[str, typer.Argument(metavar="URL|PLAN.toml", help="tcp://host:port, or a plan with hosts.server.")],
    *,
    token_file: Annotated[Path | None, typer.Option(help="NAME.token of `thalweg pki issue NAME`.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name; without it the token's, or this machine's.")] = None,
    app: Annotated[
        str | None,
        typer.Option(metavar="MODULE:OBJECT", help="An app of one's own: my_app:App, or path/to/file.py:App."),
    ] = None,
    tensors: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Tensors that travel: head.*, !head.* or trainable; may be repeated."),
    ] = None,
    ca: Annotated[PemFile, typer.Option(help="Certificate authority of the server, PEM.")] = None,
    cert: Annotated[PemFile, typer.Option(help="This client's certificate, PEM.")] = None,
    key: Annotated[PemFile, typer.Option(help="Its private key, PEM.")] = None,
    tls: Annotated[str, typer.Option(help="auto, on or off.")] = "auto",
    login_file: Annotated[Path | None, typer.Option(help="File with one line user:password, for a broker.")] = None,
    option: Options = None,
    data_root: Annotated[str | None, typer.Option(metavar="DIR", help="Folder with the files of the data set.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="To train with; else its share of the cores.")] = None,
    congestion: Annotated[str | None, typer.Option(help="Congestion control: cubic, reno, bbr, ...")] = None,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds after which it gives up if no server has let it in.")
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Take part in a server's job."""
    with output(as_json=as_json) as emit:
        from thalweg.job.remote import Membership, join_job
        from thalweg.transports import registry

        membership = Membership(
            target=url,
            name=name,
            token_file=token_file,
            ca=ca,
            cert=cert,
            key=key,
            tls=tls,
            congestion=congestion,
            login_file=login_file,
            own=registry.own_options(option or ()),
            patience=patience,
        )
        emit(join_job(membership, app, data_root, threads, _note, tensors=tensors))


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
