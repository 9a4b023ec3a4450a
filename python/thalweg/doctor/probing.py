"""The two ends of ``thalweg doctor URL``: the server of probes, and the client's tokens and certificates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from thalweg import _core, wire
from thalweg.errors import PlanError
from thalweg.plan import Plan
from thalweg.transports import links, pki
from thalweg.ui.units import parse_size


def amount(size: str) -> int:
    """Return the bytes of a size. Raises PlanError."""
    try:
        return parse_size(size)
    except ValueError as error:
        raise PlanError(f"--size: {error}", "Write it as 64MiB") from error


@dataclass(frozen=True, slots=True)
class Served:
    """Where probes were answered, and for how many seconds: None until the command was ended."""

    served: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ProbeTransport:
    """Options of the transport of a probe: those of TLS, as the core takes them."""

    tls: object = None


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """The core's options of a probe."""

    transport: ProbeTransport = ProbeTransport()
    token: str | None = None


def serve(url: str, folder: str | None, seconds: float | None, note: Callable[[str], None]) -> Served:
    """Answer probes at ``url``. Peers on other machines must have a certificate from the pki ``folder``.

    Raises LinkError if other machines can reach ``url`` and there is no such folder, CoreError if it cannot listen.
    """
    plan = Plan.of({"security": {"clients": "certificate", **({} if folder is None else {"pki": folder})}})
    trust = links.server_trust(plan.security, url)
    note(f"answering probes at {url}; Ctrl-C ends it")
    _core.probe_serve(url, wire.encode(ProbeOptions(ProbeTransport(trust.tls))), seconds)
    return Served(url, seconds)


def client_options(url: str | None, token_file: Path | None, cert: Path | None, key: Path | None) -> ProbeOptions:
    """Return the options of a probe to ``url``. Raises PlanError, LinkError."""
    if url is None:
        return ProbeOptions()
    if (cert is None) != (key is None):
        raise PlanError("a certificate and its key go together", "Give both --cert and --key, or neither")
    token = None if token_file is None else pki.read_token(token_file)
    identity = None
    if cert is not None and key is not None:
        identity = links.Identity.read(cert, key)
    trust = links.remote_trust(url, token, None, identity, "auto")
    return ProbeOptions(ProbeTransport(trust.tls), trust.token)
