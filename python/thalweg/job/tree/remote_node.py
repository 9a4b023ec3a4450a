"""``thalweg node URL --parent URL``: one node of an aggregation tree. The root is another process, on any machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from thalweg import machine
from thalweg.errors import PlanError
from thalweg.job.common.metrics import RoundCounts, exposing
from thalweg.job.star.remote import MemberResult
from thalweg.job.tree.node import Gateway
from thalweg.job.tree.order import NodeOrder
from thalweg.transports import links, pki


@dataclass(frozen=True)
class TreeNodeOptions:
    """Where a node listens for its clients, and how it joins its parent's job. Certificates and keys are PEM files.

    The node shows its token to the parent, and checks its clients' tokens by the issuer that this token names. It shows
    clients the certificate ``cert``, whose private key is ``key``. It waits for ``clients`` clients. With ``nodes`` it
    is a middle node: it waits for that many nodes instead.
    """

    listen: str
    parent: str
    clients: int | None = None
    nodes: int | None = None
    name: str | None = None
    token_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    tls: str = "auto"
    timeout: float = 300.0
    # The URL by which clients of other nodes reach this node, if that differs from where it listens.
    advertise: str | None = None
    # Where Prometheus reads this node's metrics, as PORT or HOST:PORT.
    metrics: str | None = None


def run_tree_node(options: TreeNodeOptions, note: Callable[[str], None]) -> MemberResult:
    """Run the node until the job is over.

    Raises PlanError or LinkError for wrong settings on this side, CoreError if the parent refuses the node.
    """
    if "://" not in options.parent:
        raise PlanError(f"--parent is {options.parent!r}", "Give where the server listens, as tcp://host:port")
    if (options.clients is None) == (options.nodes is None):
        raise PlanError("a node has either clients or nodes below it", "Give --clients NUMBER or --nodes NUMBER")
    if options.nodes is not None:
        _check_middle(options)
    if options.advertise is not None and options.advertise.partition("://")[0] != options.listen.partition("://")[0]:
        raise PlanError(
            f"--advertise is {options.advertise!r}, and this node listens at {options.listen}",
            "Give the same transport, as tcp://west.example:7071",
        )
    token = None if options.token_file is None else pki.read_token(options.token_file)
    authority = None if options.ca is None else pki.read(options.ca)
    up = links.remote_trust(options.parent, token, authority, None, options.tls)
    if (options.cert is None) != (options.key is None):
        raise PlanError("a certificate and its key go together", "Give both --cert and --key, or neither")
    identity = None
    if options.cert is not None and options.key is not None:
        identity = links.Identity.read(options.cert, options.key)
    name = options.name or (token.name if token else socket.gethostname())
    order = NodeOrder(
        name=name,
        url=options.parent,
        listen=options.listen,
        clients=options.clients or 0,
        nodes=options.nodes,
        advertise=options.advertise,
        options={
            "transport": {"tls": up.tls},
            "token": up.token,
            "timeout": options.timeout,
            "seed": os.getpid(),
            "tree": True,
        },
        trust=links.tree_node_trust(options.listen, token, identity),
    )
    gateway = Gateway(order, note)
    note(f"{name}: joining {options.parent}")
    with exposing(options.metrics, note, clients=gateway.clients, nodes=lambda: gateway.worker_counters(name)) as count:
        gateway.watch(lambda outcome: count(RoundCounts.of_outcome(outcome)))
        rounds = gateway.serve()
    return MemberResult(name, gateway.address, rounds, machine.peak_rss_bytes())


def _check_middle(options: TreeNodeOptions) -> None:
    """Raise PlanError for settings that a node with nodes below it cannot have."""
    if not options.listen.startswith("tcp://"):
        raise PlanError(
            f"nodes connect by TCP, and this node listens for nodes at {options.listen}",
            "Give a URL as tcp://host:port",
        )
    if options.advertise is not None:
        raise PlanError(
            f"--advertise is {options.advertise!r}, and this node has no clients of its own that could move",
            "Give --advertise to the nodes below it",
        )
