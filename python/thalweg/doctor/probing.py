"""The two ends of ``thalweg doctor URL``: who answers probes, and with what trust they are sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thalweg import _core
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


def serve(url: str, folder: str | None, seconds: float | None, note: Callable[[str], None]) -> dict[str, Any]:
    """Answer probes at ``url``; beyond this machine only those with a certificate from the pki ``folder``.

    Raises LinkError without one there, CoreError if ``url`` cannot be listened at.
    """
    plan = Plan.of({"security": {"clients": "certificate", **({} if folder is None else {"pki": folder})}})
    trust = links.server_trust(plan.security, url)
    note(f"answering probes at {url}; Ctrl-C ends it")
    _core.probe_serve(url, json.dumps({"transport": {"tls": trust.get("tls")}}), seconds)
    return {"served": url, "seconds": seconds}


def client_options(url: str | None, token_file: Path | None, cert: Path | None, key: Path | None) -> dict[str, Any]:
    """Return the options of a probe to ``url``. Raises PlanError, LinkError."""
    if url is None:
        return {}
    if (cert is None) != (key is None):
        raise PlanError("a certificate and its key go together", "Give both --cert and --key, or neither")
    token = None if token_file is None else pki.read_token(token_file)
    identity = None
    if cert is not None and key is not None:
        identity = {"certificate": pki.read(cert), "key": pki.read(key)}
    trust = links.remote_trust(url, token, None, identity, "auto")
    return {"transport": {"tls": trust.get("tls")}, "token": trust.get("token")}
