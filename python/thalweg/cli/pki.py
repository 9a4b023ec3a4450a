"""``thalweg pki``: init, issue, renew, revoke."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thalweg.cli import values
from thalweg.ui.output import Json, output

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make certificates and tokens.")

Folder = Annotated[Path, typer.Option("--dir", help="Folder of the certificate authority.")]
Days = Annotated[int, typer.Option(min=1, max=36500, help="Days that certificates are valid.")]


@app.command("init")
def init(
    folder: Folder = Path("pki"),
    *,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server, repeatable; else this machine's.")
    ] = None,
    days: Days = 365,
    as_json: Json = False,
) -> None:
    """Make a certificate authority, the server's certificate, and the secret and public key of tokens."""
    with output(as_json=as_json) as emit:
        from thalweg.transports import pki

        hosts = host or pki.own_hosts()
        paths = pki.init(folder, hosts, days)
        emit({"files": [str(path) for path in paths], "hosts": hosts, "days": days})
    if not as_json:
        typer.echo(f"made in {folder}: {', '.join(path.name for path in paths)}")
        typer.echo(f"the server's certificate is for: {', '.join(hosts)}")
        typer.echo(f"keep {folder} on the server's machine, private; next: thalweg pki issue NAME for each client")


@app.command("issue")
def issue(
    name: Annotated[str, typer.Argument(help="Name of the client or node.")],
    *,
    role: Annotated[
        str,
        typer.Option(
            help="What it is: client, task-member (Flower too), tree-node, graph-node, or forward (near end).",
            autocompletion=values.roles,
        ),
    ] = "client",
    folder: Folder = Path("pki"),
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address by which others reach it, repeatable: for a node of a tree or a graph."),
    ] = None,
    days: Days = 365,
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for the files; else that of --dir.")] = None,
    as_json: Json = False,
) -> None:
    """Make the token, certificate and key of a client or a node. Each gets in by its role, and nowhere else."""
    with output(as_json=as_json) as emit:
        from thalweg.transports import pki

        certificate, key, token = pki.issue(folder, name, days, to, hosts=host or (), role=role)
        emit({"certificate": str(certificate), "key": str(key), "token": str(token), "days": days})
    if not as_json:
        _say(name, role, (certificate, key, token), folder / "ca.crt")


@app.command("renew")
def renew(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Clients and nodes, or server; none for all.")
    ] = None,
    *,
    folder: Folder = Path("pki"),
    days: Days = 365,
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the files; else that of --dir.")] = None,
    as_json: Json = False,
) -> None:
    """Replace certificates and keys by new ones of the same name, role and hosts, before they expire.

    Tokens do not expire. Who uses a certificate reads it when it starts, so restart it.
    """
    with output(as_json=as_json) as emit:
        from thalweg.transports import pki

        chosen = names or pki.renewable(folder, to)
        files = {name: pki.renew(folder, name, days, to) for name in chosen}
        emit({"files": [str(path) for paths in files.values() for path in paths], "days": days})
    if not as_json:
        for paths in files.values():
            typer.echo(f"renewed for {days} days: {', '.join(path.name for path in paths)}")
        typer.echo("copy them to where they are used, and restart what uses them")


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="Name of the client or node.")],
    *,
    role: Annotated[
        str | None,
        typer.Option(
            help="Its role: client, task-member or tree-node. Default: that of its files in the folder of --dir.",
            autocompletion=values.revocable_roles,
        ),
    ] = None,
    folder: Folder = Path("pki"),
    as_json: Json = False,
) -> None:
    """Shut a client or a node out for good: its token and its certificate no longer count.

    Running servers that use the folder cut it off within two seconds; clients of a tree's nodes stay. The name cannot
    be issued again for this role.
    """
    with output(as_json=as_json) as emit:
        from thalweg.transports import pki

        role = role or pki.role_of(folder, name)
        path = pki.revoke(folder, name, role)
        emit({"file": str(path), "name": name, "role": role})
    if not as_json:
        typer.echo(f"{name} is revoked as {role}, in {path}")


def _say(name: str, role: str, files: tuple[Path, Path, Path], authority: Path) -> None:
    """Print what to do with a party's files."""
    certificate, key, token = files
    pair = f"--cert {certificate.name} --key {key.name}"
    if role == "graph-node":
        named = ", ".join(path.name for path in (certificate, key, authority))
        typer.echo(f"copy {named} to the node's machine, over a channel you trust; there:")
        typer.echo(f"  thalweg node PLAN --name {name} --ca ca.crt {pair}")
        return
    if role == "tree-node":
        named = ", ".join(path.name for path in (token, certificate, key))
        typer.echo(f"copy {named} to the node's machine, over a channel you trust; there:")
        typer.echo(f"  thalweg node URL --parent tcp://SERVER:7070 --token-file {token.name} {pair} --clients NUMBER")
        return
    commands = {
        "client": "thalweg client tcp://SERVER:7070",
        "task-member": "thalweg flower client APP_DIR tcp://SERVER:7070",
        "forward": "thalweg forward --listen :PORT --via tcp://SERVER:7070",
    }
    typer.echo(f"copy {token} to the {role}'s machine, over a channel you trust; there:")
    typer.echo(f"  {commands[role]} --token-file {token.name}")
    typer.echo("for a server that asks for certificates copy the other two as well:")
    typer.echo(f"  {commands[role].rpartition(' ')[0]} ... --token-file {token.name} {pair}")
