"""A client's way through a job: join, train, send, again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from thalweg import _core, machine
from thalweg.parties import PartyMaker

Note = Callable[[str], None]


def take_part(client: _core.Client, make: PartyMaker, note: Note) -> list[dict[str, Any]]:
    """Take part in every round until the job is done; return ``{"round", "samples", "status"}`` of each.

    ``status`` is accepted, late, rejected or done. A refused update is told to ``note`` and does not end the job.
    To the party's metrics are added ``train_seconds``, ``peak_rss_bytes``, ``cpu_seconds`` and
    ``congestion_control``. Raises CoreError if the server does not let the client in or is gone for good, and
    whatever training raises.
    """
    client.join()
    party = None
    rounds: list[dict[str, Any]] = []
    while (task := client.next()) is not None:
        number, text = task
        config = json.loads(text)
        party = party or make(config, client.arena)
        started = time.perf_counter()
        samples, metrics = party.train(config)
        metrics["train_seconds"] = time.perf_counter() - started
        metrics["peak_rss_bytes"] = machine.peak_rss_bytes()
        metrics["cpu_seconds"] = machine.cpu_seconds()
        metrics["congestion_control"] = client.congestion
        status = _submit(client, number, samples, json.dumps(metrics), note)
        rounds.append({"round": number, "samples": samples, "status": status})
        note(f"round {number}: {samples} samples, {status}")
    return rounds


def _submit(client: _core.Client, number: int, samples: int, metrics: str, note: Note) -> str:
    try:
        return client.submit(number, samples, metrics)
    except _core.CoreError as error:
        if error.kind != "rejected":
            raise
        note(str(error))
        return "rejected"
