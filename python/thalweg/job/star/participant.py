"""The loop of a client in a job: join, then in each round receive the model, train it and send the update."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from thalweg import _core, bounded_json, machine, training_progress
from thalweg.apps.metrics import offered
from thalweg.apps.received_config import ReceivedConfig
from thalweg.job.common.parties import PartyMaker
from thalweg.outcome import ClientRound
from thalweg.outcome.core import ClientUsage

Note = Callable[[str], None]


@dataclass(frozen=True)
class Submission:
    """A client's update in a round. ``samples`` is its weight, by default the number of samples.

    ``status`` is the server's answer: accepted, late or rejected. It is done if the job ended before the answer.
    """

    round: int
    samples: int | float
    status: str

    def table(self) -> ClientRound:
        """Return the dict that ``thalweg.Client`` returns to users."""
        return {"round": self.round, "samples": self.samples, "status": self.status}


def take_part(
    client: _core.Client, make: PartyMaker, note: Note, joining: AbstractContextManager[None] | None = None
) -> list[Submission]:
    """Take part in every round until the job is done; return the submissions.

    The client joins the server within ``joining``.

    A rejected update does not end the job: ``note`` gets the reason. Beside the party's metrics the client reports what
    its process used (``ClientUsage``). Raises CoreError if the server refuses the client or is gone for good,
    MetricsError for a value that is not a metric, and whatever training raises.
    """
    with joining or nullcontext():
        client.join()
    party = None
    rounds: list[Submission] = []
    while (task := client.next()) is not None:
        number, text = task
        config = ReceivedConfig(bounded_json.read_object(text))
        party = party or make(config, client.arena)
        started = time.perf_counter()
        with training_progress.showing(number):
            samples, metrics = party.train(config)
        usage = _usage(client, time.perf_counter() - started)
        evaluation = party.evaluation(config)  # before `finish`, which may replace the trained model in the arena
        samples, metrics = party.finish(samples, metrics)
        text = offered(metrics, usage.table(), evaluation)
        status = _submit(client, number, samples, text, note)
        rounds.append(Submission(number, samples, status))
        note(f"round {number}: {samples} samples, {status}")
        if status == "done":  # the core reports the job's end only once, so `next` would wait for ever
            break
    return rounds


def _usage(client: _core.Client, seconds: float) -> ClientUsage:
    return ClientUsage(seconds, machine.cpu_seconds(), machine.peak_rss_bytes(), client.congestion)


def _submit(client: _core.Client, number: int, samples: float, metrics: str, note: Note) -> str:
    try:
        return client.submit(number, samples, metrics)
    except _core.CoreError as error:
        if error.kind != "rejected":
            raise
        note(str(error))
        return "rejected"
