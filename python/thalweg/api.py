"""Federated averaging in a few lines: ``Server``, ``Client`` and ``fedavg`` around the user's own app.

An app is any object with two methods. ``model()`` returns a ``torch.nn.Module`` or a dict of NumPy arrays.
``train(model, data, config) -> (samples, metrics)`` is called on clients. An app may also have ``evaluate(model, data)
-> metrics``, which is called on the parties that evaluate.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from thalweg import _core, algorithms, apps, trackers, wire
from thalweg.algorithms.server_step import ServerStep
from thalweg.algorithms.torch_rule import MakeOptimizer, TorchRule
from thalweg.apps import name_of
from thalweg.apps.app import App
from thalweg.apps.metrics import Intake, of_clients
from thalweg.apps.received_config import ReceivedConfig
from thalweg.apps.values import config_of
from thalweg.errors import PlanError, leaving
from thalweg.job.common import server_reports
from thalweg.job.common.parties import CLIENTS, SERVER, algorithm_table, evaluators
from thalweg.job.star import compression as compression_of
from thalweg.job.star.attendance import Attendance
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.outcome import ClientRound, Outcome
from thalweg.tensors.binding import bind
from thalweg.tensors.watching import Watch
from thalweg.wire import Table

if TYPE_CHECKING:
    from thalweg.job.star.record import Recording
    from thalweg.plan import Plan

Metrics = dict[str, Any]
# Without a handler, Python's logging prints warnings to standard error.
_log = logging.getLogger("thalweg")


@dataclass(frozen=True)
class Round:
    """One round: its number, the metrics of its evaluations, and the core's outcome (docs/reference/outcome.md)."""

    number: int
    metrics: Metrics
    outcome: Outcome

    @property
    def complete(self) -> bool:
        """Whether the mean includes every client that was expected."""
        return self.outcome["complete"]

    @property
    def participants(self) -> list[str]:
        """Names of the clients whose whole update is in the mean."""
        return [part["client"] for part in self.outcome["participants"] if part["state"] == "whole"]

    @property
    def absent(self) -> dict[str, str]:
        """Clients that take part in this round but are not in the mean, each with the reason."""
        parts = self.outcome["participants"]
        return {part["client"]: part["reason"] or "" for part in parts if part["state"] not in ("whole", "partial")}


class Server:
    """A server that owns the global model. Use it as a context manager, or close it."""

    def __init__(
        self,
        app: App,
        *,
        clients: int,
        choose: float | None = None,
        seed: int = 0,
        listen: str = "tcp://127.0.0.1:0",
        enough: int | None = None,
        goal: int | None = None,
        deadline: float | None = None,
        grace: float = 10.0,
        outage: float | None = None,
        stale: int | None = None,
        partial: str = "discard",
        deterministic: bool = False,
        compression: str | None = None,
        compression_down: str | None = None,
        pki: Path | str | None = None,
        tensors: str | Sequence[str] | None = None,
        evaluate: Literal["server", "clients", "both"] | None = None,
        record: Path | str | None = None,
        resume: Path | str | None = None,
        track: str | Sequence[str] = (),
    ) -> None:
        """Listen at ``listen`` for ``clients`` clients.

        Each round takes all of them, or draws ``choose`` of them: a number, or a fraction such as 0.125. The draws
        follow from ``seed``, which clients get in each round's config too. A round ends when it is complete, or after
        ``deadline`` seconds if at least ``enough`` whole updates have arrived. With ``goal`` it ends as soon as that
        many have. A client whose link broke has ``grace`` seconds to come back, and ``outage`` seconds, if given, while
        the round has too few updates without it. An update that comes up to ``stale`` rounds late counts in the next
        mean, with less weight; by default it does not count. ``pki`` is a
        folder made by ``thalweg pki init``; an address beyond loopback needs one. ``partial`` says what becomes of an
        update of which only a part arrived: it is dropped (``discard``), or what came of it counts
        (``keep``).
        With ``deterministic`` the mean has the same bits in any order of arrival. ``compression`` is the plan's
        ``compression.scheme``, as ``int8`` or ``topk:0.01``, and ``compression_down`` its ``compression.down``; clients
        must have the same. ``tensors`` says which tensors travel. Without it the app's ``tensors`` says so, and without
        that all tensors travel. ``evaluate`` says who evaluates: the server evaluates the global model, or each client
        evaluates the model that it has trained. By default the server evaluates, but clients do if trained tensors stay
        with them. ``record`` is a folder that gets the record of this job. ``resume`` is a record to continue:
        ``number`` is then the last round in it. ``track`` names trackers that get each round of the record, as
        ``tensorboard:boards`` (docs/how-to/trackers.md). One that fails is logged as a warning, and the job goes on; at
        the end ``close`` waits at most 60 s for them. Raises PlanError, PackageError, LinkError, ModelError,
        RecordError, CoreError.
        """
        from thalweg.plan import Plan
        from thalweg.plan.options import server_options
        from thalweg.transports import links, registry

        if record is not None and resume is not None:
            raise PlanError("a record is resumed where it is", "Give record or resume, not both")
        tracked = [track] if isinstance(track, str) else list(track)
        if tracked and record is None and resume is None:
            raise PlanError("trackers read the record of a job, and this one has none", "Give record, a folder")
        job: dict[str, float | str | None] = {"clients": clients, "choose": choose, "enough": enough, "goal": goal}
        job |= {"deadline": deadline, "grace": grace, "outage": grace if outage is None else outage}
        job |= {"evaluate": evaluate, "seed": seed}
        aggregation = {"partial": partial, "deterministic": deterministic, "stale": stale}
        compressed = {"scheme": compression, "down": compression_down}
        table = {
            "job": {key: value for key, value in job.items() if value is not None},
            "transport": {"url": listen},
            "aggregation": {key: value for key, value in aggregation.items() if value is not None},
            "compression": {key: value for key, value in compressed.items() if value is not None},
            "security": {} if pki is None else {"pki": str(pki)},
            "app": name_of(app),
            "model": {} if (words := apps.own_tensors(app, tensors)) is None else {"tensors": words},
            "record": ({} if record is None else {"folder": str(record)}) | ({"track": tracked} if tracked else {}),
        }
        plan = Plan.of(table, "the server's arguments")
        trackers.require(plan.record.track)
        apps.check_rounds(app, late=stale is not None, partial=partial == "keep", compressed=compression is not None)
        self._seed, self._stale = plan.job.seed, stale
        self.app, self.clients = app, clients
        self._bound = bind(app.model(), words, shared=registry.lends(plan.url))
        self._watch = Watch(self._bound, _log.warning)
        self._evaluators = evaluators(evaluate, personal=self._bound.personal, evaluates=apps.evaluates(app))
        self.model, self.arena = self._bound.model, self._bound.arena
        options = server_options(plan, links.server_trust(plan.security, listen))
        self._core = _core.Server(self.arena.core, listen, wire.encode(options))
        self._intake, self._attendance = Intake(), Attendance()
        self._step: ServerStep | None = None
        self._algorithm: Table | None = None
        # What ``learn_by`` has chosen last: name, settings and optimizer.
        self._chosen: tuple[str, Mapping[str, float | bool | None], MakeOptimizer | None] | None = None
        self._test: Any = None
        self._recording: Recording | None = None
        if record is not None or resume is not None:
            self._recording = self._record(plan, listen, None if resume is None else Path(resume))
        self.number = 0 if self._recording is None else self._recording.done
        # The optimizer's state of a resumed record, until ``learn_by`` takes it.
        self._resumed = None
        if self._recording is not None:
            self._resumed = compression_of.resumed(self._core, self._recording.record.state)
            self._recording.record.state = self._resumed

    def _record(self, plan: Plan, listen: str, resume: Path | None) -> Recording:
        from thalweg.job.star.record import Recording

        try:
            recording = Recording(
                plan,
                self.arena.core,
                listen,
                self.address,
                app=self.app,
                resume=resume,
                attendance=self._attendance,
                note=_log.warning,
            )
            self._bound.restore("the record was read")
            return recording
        except BaseException:
            self._core.close("the server has failed")
            raise

    @property
    def record(self) -> Path | None:
        """The folder of this job's record, or None."""
        return None if self._recording is None else self._recording.record.path

    @property
    def address(self) -> str:
        """The URL that clients connect to, with the port that the system chose."""
        return self._core.address

    def wait(self, clients: int | None = None, timeout: float | None = None) -> int:
        """Wait until ``clients`` (default all) are connected or ``timeout`` seconds are over; return how many are.

        Meanwhile the logger ``thalweg`` warns of each client that will not come by itself, with the reason: the client
        left for good, or it was refused because its model differs. The reason then names the first tensor that differs.
        Another client of that name may still come.
        """
        wanted = self.clients if clients is None else clients
        end = None if timeout is None else time.monotonic() + timeout
        warned: set[tuple[str, str]] = set()
        while True:
            left = WAIT_SLICE if end is None else max(0.0, end - time.monotonic())
            here = self._core.wait(wanted, min(left, WAIT_SLICE))
            self._log_notes(self._core.notes())
            if here >= wanted or left == 0:
                return here
            for name, reason, has_left in server_reports.departed(self._core):
                if has_left and (name, reason) not in warned:
                    warned.add((name, reason))
                    _log.warning("waiting for %d of %d clients; %s: %s", wanted - here, wanted, name, reason)

    def round(self, config: Mapping[str, object] | None = None) -> Outcome:
        """Run the next round and return the core's outcome; ``config`` reaches every ``train``.

        Clients start from the values that ``model`` has now. Afterwards ``model`` has the mean of their updates,
        whatever ``learn_by`` has chosen before. Raises CoreError, ModelError if the tensors of ``model`` were replaced
        by others, and PlanError for a config that ``round_config`` refuses, or if the resumed record has the state of
        an optimizer.
        """
        if self._step is not None or self._resumed is not None:
            self.learn_by()
        return self.advance(config).outcome

    def round_config(self, config: Mapping[str, object] | None = None) -> str:
        """Return the config of the next round as JSON: thalweg's own keys, and those of ``config``.

        The own keys are ``round``, ``clients``, ``names``, ``seed``, ``evaluate`` if clients evaluate, and
        ``algorithm`` if clients do a part of it. Raises PlanError if ``config`` has one of these keys, or a value that
        JSON cannot hold. Scalars of NumPy and PyTorch become numbers.
        """
        names = sorted(server_reports.clients(self._core))
        own = {"round": self.number + 1, "clients": self.clients, "names": names, "seed": self._seed}
        own |= {"evaluate": True} if CLIENTS in self._evaluators else {}
        own |= {} if self._algorithm is None else {"algorithm": self._algorithm}
        return config_of(own, config)

    def learn_by(
        self, algorithm: str | Mapping[str, float | bool | str] = "fedavg", *, optimizer: MakeOptimizer | None = None
    ) -> None:
        """Choose how the next rounds of ``advance`` change the model; ``thalweg.rounds`` calls this.

        ``algorithm`` and ``optimizer`` are as for ``rounds``. The same ones as before go on with their state; others
        begin anew. If the record was resumed, its optimizer's state goes on.
        Raises PlanError for what cannot be, RoundError for a state of another optimizer.
        """
        from thalweg.plan import Plan

        table = {"name": algorithm} if isinstance(algorithm, str) else dict(algorithm)
        if optimizer is not None and table != {"name": "fedavg"}:
            raise PlanError("algorithm and optimizer both say how the server changes the model", "Give one of them")
        if optimizer is not None and self._stale is not None:
            raise PlanError(
                "an optimizer takes a step from the model that a round began with, and a late update was trained from "
                "an older one",
                "Remove the server's stale, or the optimizer",
            )
        late = {} if self._stale is None else {"aggregation": {"stale": self._stale}}
        plan = Plan.of({"algorithm": table, "app": name_of(self.app), **late}, "the algorithm")
        chosen, settings = algorithms.find(plan.algorithm.name), plan.algorithm_settings
        if self._chosen == (chosen.name, settings, optimizer):
            return
        core, names = self.arena.core, self._bound.trained
        if optimizer is None:
            step = chosen.server_step(core, names, settings)
        else:
            make = optimizer
            step = ServerStep(core, names, lambda values: TorchRule(values, make))
        if step is None:
            self._refuse_state()
        else:
            step.load(self._resumed)
        self._step, self._resumed, self._chosen = step, None, (chosen.name, settings, optimizer)
        self._algorithm = algorithm_table(chosen.name, settings)
        if self._recording is not None:
            made_by = None if step is None else step.name
            self._recording.record.state = None
            self._recording.record.note(algorithm={"name": chosen.name, **settings, "optimizer": made_by})

    def _refuse_state(self) -> None:
        """Raise PlanError if the resumed record has an optimizer's state that nothing has taken."""
        if self._resumed is not None:
            raise PlanError(
                "the record has the state of an optimizer, and no optimizer is given",
                "Give the algorithm or the optimizer that the record was made with, by thalweg.rounds or learn_by",
            )

    def advance(self, config: Mapping[str, object] | None = None, *, data: Any = None) -> Round:
        """Run the next round, evaluate the model on ``data`` or the app's ``test_data()``, and record both.

        ``config`` reaches every ``train``. Without ``data`` and ``test_data()`` the server evaluates nothing. If
        clients evaluate their own models, the round's metrics also have the means over clients: ``client_accuracy`` and
        ``client_loss``. The model changes as ``learn_by`` has chosen, by default to the mean. Raises what ``round`` and
        ``evaluate`` raise, and RecordError.
        """
        self._refuse_state()
        self._bound.collect("the last round")
        number, text = self.number + 1, self.round_config(config)
        if self._step is not None:
            self._step.before()
        outcome, notes = self._intake.outcome(self._core.round(number, text, None))
        if self._step is not None:
            self._step.after(outcome.participants)
        self.number = number
        self._log_notes([*self._core.notes(), *notes])
        self._attendance.add(outcome.participants)
        self._bound.restore("the round")
        started = time.perf_counter()
        data = self._test_data() if data is None else data
        metrics = {} if data is None else self.evaluate(data)
        if self._recording is not None:
            state = compression_of.with_held(None if self._step is None else self._step.state(), self._core)
            self._recording.keep(outcome, metrics, time.perf_counter() - started if metrics else None, state)
        return Round(outcome.round, metrics | of_clients(outcome), wire.values_of(outcome))

    def _log_notes(self, notes: Sequence[str]) -> None:
        """Log each note, and write it to the log of the record."""
        for note in notes:
            _log.info("%s", note)
            if self._recording is not None:
                self._recording.record.log(note)

    def expect(self, rounds: int) -> None:
        """Write to the record that ``rounds`` more rounds are planned."""
        if self._recording is not None:
            self._recording.expect(self.number + rounds)

    def _test_data(self) -> Any:
        if self._test is None and SERVER in self._evaluators:
            self._test = self.app.test_data()  # type: ignore[attr-defined]
        return self._test

    def evaluate(self, data: Any) -> Metrics:
        """Return the app's metrics of the global model on ``data``. Raises ModelError, and whatever the app raises."""
        work: Callable[[Any], Metrics] = lambda model: dict(self.app.evaluate(model, data))  # type: ignore[attr-defined]  # noqa: E731
        return self._watch.evaluate(work)

    def absent(self) -> dict[str, str]:
        """Return the clients that missed a round, left for good, or were refused, each with the reason.

        If a client's training raised an exception, the reason gives its type and text. A client whose model differs is
        refused; the reason names the first tensor that differs.
        """
        self._attendance.departed(server_reports.departed(self._core))
        return {one.client: one.reason or "" for one in self._attendance.absences()}

    def close(self, reason: str = "the job is over") -> None:
        """Tell every client the ``reason``, stop, and complete the record. Idempotent. Raises RecordError."""
        self._core.close(reason)
        if self._recording is not None:
            self._recording.finish("complete")

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with leaving(error):
            self._core.close("the job is over" if error is None else "the server has failed")
            if self._recording is not None:
                status = "complete" if error is None else "failed" if isinstance(error, Exception) else "interrupted"
                self._recording.finish(status, None if error is None else f"{status}: {error!r}")


class Client:
    """A client that trains its app on its own data, and reconnects by itself when the link breaks."""

    def __init__(
        self,
        app: App,
        url: str,
        *,
        name: str,
        data: Any = None,
        token_file: Path | str | None = None,
        timeout: float = 30.0,
        outage: float = 0.0,
        tensors: str | Sequence[str] | None = None,
        compression: str | None = None,
        compression_down: str | None = None,
        residual: Path | str | None = None,
    ) -> None:
        """Begin to connect to the server at ``url``; ``timeout`` is how many seconds to go on trying.

        After its link was lost it tries for ``outage`` seconds, if that is longer than ``timeout``. No two clients of a
        job have the same ``name``. Without ``data`` the data comes from the app's ``client_data()`` or
        ``train_data()``. ``token_file`` is a file made by ``thalweg pki issue``. ``tensors`` says which tensors travel,
        and must agree with the server's. So must ``compression`` and ``compression_down``. The file ``residual`` then
        keeps what compression has left out, so that a client that starts anew goes on with it. Raises LinkError,
        PlanError, ModelError.
        """
        from thalweg.plan import options as options_of
        from thalweg.transports import links, pki, registry

        token = None if token_file is None else pki.read_token(Path(token_file))
        trust = links.remote_trust(url, token, None, None, "auto")
        options: dict[str, object] = {
            "transport": {"tls": trust.tls},
            "token": trust.token,
            "timeout": timeout,
            "outage": outage,
        }
        options |= {"layers": options_of.compressing(compression, compression_down)}
        options |= {} if residual is None else {"residual": str(residual)}
        self.app, self.name, self.data = app, name, data
        self._bound = bind(app.model(), apps.own_tensors(app, tensors), shared=registry.lends(url))
        self.model, self.arena = self._bound.model, self._bound.arena
        self._core = _core.Client(url, name, wire.encode(options), self.arena.core)

    def run(self) -> list[ClientRound]:
        """Take part until the job is done; return ``{"round", "samples", "status"}`` of each round.

        Raises CoreError if the server is gone for good or refuses the client. Also raises any exception of the
        training; the client sends its type and text to the server first.
        """
        from thalweg.job.common.farewell import farewell
        from thalweg.job.common.parties import AppClient
        from thalweg.job.star.participant import take_part

        def note(text: str) -> None:
            _log.warning("%s: %s", self.name, text)

        def make(config: ReceivedConfig, _arena: object) -> AppClient:
            data = self.data if self.data is not None else apps.client_data(self.app, apps.part_of(self.name, config))
            return AppClient(self.app, self._bound, data, note=note)

        with farewell(self._core, "the client ends"):
            return [one.table() for one in take_part(self._core, make, lambda _note: None)]

    def close(self, reason: str = "the client ends") -> None:
        """Leave the job for good, and tell the server the ``reason``. Idempotent."""
        self._core.close(reason)


def fedavg(
    server: Server, rounds: int, *, data: Any = None, config: Mapping[str, object] | None = None
) -> Iterator[Round]:
    """Run ``rounds`` rounds of federated averaging (weighted by samples) on ``server``; yield each as it ends.

    Waits for all clients first. With ``data``, or if the app has ``test_data()``, the app evaluates the global model
    after each round. ``config`` reaches every ``train`` beside thalweg's own keys. Raises PlanError at once for a
    config that cannot be sent (``Server.round_config``), or if the server's resumed record has the state of an
    optimizer, and CoreError of kind ``round`` if too few updates arrive.
    """
    server.learn_by()
    server.round_config(config)
    return _rounds(server, rounds, data, config)


def rounds(
    server: Server,
    rounds: int,
    *,
    algorithm: str | Mapping[str, float | bool | str] = "fedavg",
    optimizer: MakeOptimizer | None = None,
    data: Any = None,
    config: Mapping[str, object] | None = None,
) -> Iterator[Round]:
    """Run ``rounds`` rounds on ``server`` with an algorithm or an optimizer of the server's; yield each as it ends.

    ``algorithm`` is a name, or a table with ``name`` and settings as a plan's ``[algorithm]`` (docs/reference/plan.md).
    ``optimizer`` makes any ``torch.optim.Optimizer`` of the list of the model's trained tensors; its gradient is the
    model before the round minus the mean of the clients' models: ``optimizer=lambda tensors: torch.optim.SGD(tensors,
    lr=0.7, momentum=0.9, nesterov=True)``. Tensors that no client trains become their mean. The state of either is in
    the checkpoint, and a resumed record goes on with it; so does a later call with the same algorithm and settings, or
    the same ``optimizer`` object.

    Waits for all clients first, evaluates on ``data`` and sends ``config`` as ``fedavg`` does. Raises what ``fedavg``
    raises; also PlanError at once for an algorithm that this job cannot have, and RoundError if a step gives values
    that are not finite.
    """
    server.learn_by(algorithm, optimizer=optimizer)
    server.round_config(config)
    return _rounds(server, rounds, data, config)


def _rounds(server: Server, rounds: int, data: Any, config: Mapping[str, object] | None) -> Iterator[Round]:
    server.wait()
    server.expect(rounds)
    numbers = range(server.number + 1, server.number + rounds + 1)
    yield from algorithms.find("fedavg").rounds(lambda _: server.advance(config, data=data), numbers)
