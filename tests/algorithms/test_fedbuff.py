"""FedBuff: its step is the paper's, and over real links nobody waits for a slow member."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from tests.ports import free_ports
from thalweg import _core
from thalweg.algorithms.fedbuff import Buffer, staleness_weight
from thalweg.errors import MetricsError, PlanError, RecordError, RoundError
from thalweg.record import checkpoint, journal
from thalweg.record.versions import CHECKPOINT, JOURNAL
from thalweg.tensors.arena import Arena

ROOT = Path(__file__).parents[2]
LIMIT = 60.0
# More versions than any test waits for.
MANY = 1_000_000


def test_a_step_is_the_papers() -> None:
    """Algorithm 1: the sum of s(staleness) times the updates, over their number."""
    rng = np.random.default_rng(1)
    core = _core.Arena(_core.Layout([("w", "F32", [5])]))
    arena, buffer, expected = Arena(core), Buffer(["w"], 0.5), np.zeros(5)
    for _ in range(3):
        updates = [(rng.normal(size=5).astype(np.float32), int(rng.integers(0, 9))) for _ in range(4)]
        weights = [buffer.add({"w": values}, stale) for values, stale in updates]
        assert weights == [pytest.approx(1 / np.sqrt(1 + stale)) for _, stale in updates]
        buffer.take(core)
        expected += sum(values.astype(float) / np.sqrt(1 + stale) for values, stale in updates) / 4
        np.testing.assert_allclose(arena["w"], expected, rtol=1e-5)
    assert buffer.count == 0


def test_the_weight_falls_with_staleness() -> None:
    assert [staleness_weight(stale, 0.0) for stale in range(3)] == [1.0, 1.0, 1.0]
    assert [staleness_weight(stale, 1.0) for stale in range(3)] == [1.0, 0.5, pytest.approx(1 / 3)]


class Steps:
    """Adds ``step`` to the model; waits for ``gates`` in each training, and says that it has begun."""

    def __init__(self, step: float = 1.0, gate: threading.Event | None = None) -> None:
        self.step, self.gate, self.begun = step, gate, threading.Event()
        self.seen: list[tuple[int, float]] = []

    def model(self) -> Any:
        return {"w": np.zeros(3, np.float32), "count": np.zeros(1, np.int64)}

    def train(self, model: Any, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        self.seen.append((config["round"], float(model["w"][0])))
        self.begun.set()
        if self.gate is not None:
            assert self.gate.wait(LIMIT)
        model["w"] += self.step
        model["count"] += 7
        return 5, {"step": self.step}

    def evaluate(self, model: Any, data: Any) -> dict[str, float]:
        return {"w": float(model["w"][0])}


class Failing(Steps):
    def train(self, model: Any, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        super().train(model, data, config)
        raise ValueError("no more memory")


class Diverging(Steps):
    def train(self, model: Any, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        super().train(model, data, config)
        model["w"][1] = np.nan
        return 1, {}


class Members:
    def __init__(self, server: thalweg.TaskServer, stack: ExitStack) -> None:
        self._server, self._stack = server, stack
        self.clients: dict[str, thalweg.TaskClient] = {}

    def add(self, name: str, app: Any) -> None:
        client = self.clients[name] = thalweg.TaskClient(self._server.address, name=name)
        thread = threading.Thread(target=thalweg.fedbuff_client, args=(client, app), kwargs={"data": ()}, daemon=True)
        thread.start()
        self._stack.callback(thread.join, LIMIT)


def taken(
    seen: Iterator[thalweg.Version], last: Callable[[thalweg.Version], bool]
) -> tuple[list[thalweg.Version], threading.Thread]:
    """Take versions in a thread, up to one that is the ``last``."""
    versions: list[thalweg.Version] = []

    def take() -> None:
        for version in seen:
            versions.append(version)
            if last(version):
                break
        seen.close()  # type: ignore[attr-defined]

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return versions, thread


@pytest.fixture
def server() -> Iterator[thalweg.TaskServer]:
    with thalweg.TaskServer(grace=1.0) as server:
        yield server


@pytest.fixture
def members(server: thalweg.TaskServer) -> Iterator[Members]:
    with ExitStack() as stack:
        yield Members(server, stack)
        server.close()


def test_nobody_waits_for_a_slow_member_whose_update_counts_less(server: thalweg.TaskServer, members: Members) -> None:
    gate = threading.Event()
    slow, fast = Steps(10.0, gate), Steps(1.0)
    members.add("slow", slow)
    assert server.wait(1, LIMIT) == 1
    seen = thalweg.fedbuff(server, fast, MANY, buffer=1, staleness=1.0, data=())
    versions, thread = taken(seen, lambda version: version.updates[0].member == "slow")
    assert slow.begun.wait(LIMIT), "the slow member trains the first model"
    members.add("fast", fast)
    while not fast.seen or fast.seen[-1][0] < 4:  # the model is three versions on at least
        assert fast.begun.wait(LIMIT)
        fast.begun.clear()
    gate.set()
    thread.join(LIMIT)
    assert [version.number for version in versions] == list(range(1, len(versions) + 1))
    (first,) = versions[0].updates
    assert (first.member, first.staleness, first.weight) == ("fast", 0, 1.0)
    assert (first.samples, first.metrics) == (5, {"step": 1.0})
    (stale,) = versions[-1].updates
    assert stale.staleness >= 3
    assert stale.weight == pytest.approx(1 / (1 + stale.staleness))
    # Each version is the one before it plus the weighted update; integers stay the server's own.
    at = 0.0
    for version in versions:
        (update,) = version.updates
        at += update.weight * (10.0 if update.member == "slow" else 1.0)
        assert version.metrics["w"] == pytest.approx(at, rel=1e-5)


def test_a_buffer_averages_and_an_optimizer_may_take_the_step(server: thalweg.TaskServer, members: Members) -> None:
    for name, step in (("a", 1.0), ("b", 3.0)):
        members.add(name, Steps(step))
    assert server.wait(2, LIMIT) == 2
    how = lambda tensors: torch.optim.SGD(tensors, lr=0.5)  # noqa: E731
    at = 0.0
    for version in thalweg.fedbuff(server, Steps(), 5, buffer=4, staleness=0.0, optimizer=how, data=()):
        assert len(version.updates) == 4
        at += 0.5 * np.mean([1.0 if update.member == "a" else 3.0 for update in version.updates])
        assert version.metrics["w"] == pytest.approx(at, rel=1e-5)


def test_after_a_deadline_a_step_takes_what_there_is(server: thalweg.TaskServer, members: Members) -> None:
    gate = threading.Event()
    members.add("slow", Steps(1.0, gate))
    members.add("fast", Steps(1.0))
    assert server.wait(2, LIMIT) == 2
    (version,) = thalweg.fedbuff(server, Steps(), 1, buffer=1_000_000, deadline=0.05)
    gate.set()
    assert {update.member for update in version.updates} == {"fast"}


def test_what_cannot_be_used_is_named_and_changes_nothing(server: thalweg.TaskServer, members: Members) -> None:
    members.add("failing", Failing())
    members.add("diverging", Diverging())
    members.add("good", Steps(1.0))
    assert server.wait(3, LIMIT) == 3
    seen = thalweg.fedbuff(server, Steps(), MANY, buffer=3, data=())
    found: set[str] = set()

    def both(version: thalweg.Version) -> bool:
        found.update(version.refused)
        return len(found) == 2

    versions, thread = taken(seen, both)
    thread.join(LIMIT)
    refused = {name: why for version in versions for name, why in version.refused.items()}
    assert "ValueError: no more memory" in refused["failing"]
    assert 'tensor "w", element 1 (row-major), is NaN' in refused["diverging"]
    assert {update.member for version in versions for update in version.updates} == {"good"}
    assert np.isfinite(versions[-1].metrics["w"])


def raised(seen: Iterator[thalweg.Version]) -> BaseException:
    """Return what the next version raises, and fail if it comes or hangs."""
    found: list[BaseException | thalweg.Version] = []

    def take() -> None:
        try:
            found.append(next(seen))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.append(error)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(LIMIT)
    (one,) = found
    assert isinstance(one, BaseException)
    return one


@pytest.mark.parametrize("deadline", [None, 0.05])
def test_a_job_ends_if_no_answer_counts(
    server: thalweg.TaskServer, members: Members, deadline: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    members.add("failing", Failing())
    members.add("diverging", Diverging())
    assert server.wait(2, LIMIT) == 2
    error = raised(thalweg.fedbuff(server, Steps(), MANY, buffer=3, deadline=deadline))
    assert isinstance(error, RoundError)
    assert "ValueError: no more memory" in str(error)
    assert 'tensor "w", element 1 (row-major), is NaN' in str(error)
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert any("failing: " in text for text in warned)


def test_an_exception_in_a_members_thread_reaches_the_caller(
    server: thalweg.TaskServer, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    members.add("good", Steps())
    assert server.wait(1, LIMIT) == 1

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of a thread")

    monkeypatch.setattr(server, "send", fail)
    assert isinstance(raised(thalweg.fedbuff(server, Steps(), MANY, buffer=1)), ZeroDivisionError)


@pytest.mark.parametrize("config", [{"rate": float("nan")}, {"rate": object()}, {"round": 3}])
def test_a_config_that_cannot_be_sent_is_refused_at_once(server: thalweg.TaskServer, config: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="config"):
        thalweg.fedbuff(server, Steps(), 1, buffer=1, config=config)


def test_threads_of_members_that_are_gone_are_forgotten(server: thalweg.TaskServer, members: Members) -> None:
    members.add("stays", Steps())
    seen = thalweg.fedbuff(server, Steps(), MANY, buffer=1)
    next(seen)
    job = seen.gi_frame.f_locals["self"]  # type: ignore[attr-defined]
    members.add("goes", Steps())
    assert any(version.updates[0].member == "goes" for version in seen)
    assert set(vars(job)["_threads"]) == {"stays", "goes"}
    members.clients["goes"].close()
    assert any("goes" in version.refused for version in seen)
    assert any(set(vars(job)["_threads"]) == {"stays"} for _ in zip(range(1000), seen, strict=False))
    seen.close()  # type: ignore[attr-defined]


def test_members_come_and_go(server: thalweg.TaskServer, members: Members) -> None:
    members.add("first", Steps(1.0))
    seen = thalweg.fedbuff(server, Steps(), MANY, buffer=1)
    assert next(seen).updates[0].member == "first"
    members.add("second", Steps(1.0))
    assert any(version.updates[0].member == "second" for version in seen)
    members.clients["second"].close()
    gone = (version.refused.get("second") for version in seen)
    assert "the client ends" in next(why for why in gone if why is not None)
    assert next(seen).updates[0].member == "first"
    seen.close()  # type: ignore[attr-defined]


def test_an_update_that_is_too_old_is_dropped(server: thalweg.TaskServer, members: Members) -> None:
    gate = threading.Event()
    slow = Steps(10.0, gate)
    members.add("slow", slow)
    assert server.wait(1, LIMIT) == 1
    seen = thalweg.fedbuff(server, Steps(), MANY, buffer=1, most_stale=0)
    versions, thread = taken(seen, lambda version: "slow" in version.refused)
    assert slow.begun.wait(LIMIT)
    fast = Steps(1.0)
    members.add("fast", fast)
    while not fast.seen or fast.seen[-1][0] < 4:
        assert fast.begun.wait(LIMIT)
        fast.begun.clear()
    gate.set()
    thread.join(LIMIT)
    assert "versions old, over 0" in versions[-1].refused["slow"]
    assert all(update.member == "fast" for version in versions[:-1] for update in version.updates)


@pytest.mark.parametrize("wrong", [{"buffer": 0}, {"deadline": 0.0}, {"staleness": -1.0}, {"most_stale": -1}])
def test_numbers_that_cannot_be_are_refused(server: thalweg.TaskServer, wrong: dict[str, Any]) -> None:
    how: dict[str, Any] = {"buffer": 1, **wrong}
    with pytest.raises(PlanError, match=f"{next(iter(wrong))} is too small"):
        thalweg.fedbuff(server, Steps(), 1, **how)


def test_a_member_with_another_model_is_told(server: thalweg.TaskServer, members: Members) -> None:
    class Other(Steps):
        def model(self) -> Any:
            return {"w": np.zeros(4, np.float32), "count": np.zeros(1, np.int64)}

    members.add("other", Other())
    members.add("good", Steps())
    assert server.wait(2, LIMIT) == 2
    seen = thalweg.fedbuff(server, Steps(), MANY, buffer=1)
    why = next(version.refused["other"] for version in seen if "other" in version.refused)
    seen.close()  # type: ignore[attr-defined]
    assert "the model differs from the server's: w is float32 [3] in the server's model" in why


class Words(Steps):
    def evaluate(self, model: Any, data: Any) -> dict[str, Any]:
        return {"w": "much"}


def test_an_evaluation_that_is_no_number_is_refused(server: thalweg.TaskServer, members: Members) -> None:
    members.add("good", Steps())
    assert server.wait(1, LIMIT) == 1
    error = raised(thalweg.fedbuff(server, Words(), 1, buffer=1, data=()))
    assert isinstance(error, MetricsError)
    assert "evaluate returned 'much' as w" in str(error)


STEPS = {"a": 1.0, "b": 3.0}
RATE, MOMENTUM = 0.5, 0.9


def with_momentum(tensors: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(tensors, lr=RATE, momentum=MOMENTUM)


def serve(url: str, folder: str) -> None:
    """Serve until the process is killed, and print each version's number. A test calls it in a process."""
    with thalweg.TaskServer(listen=url) as server:
        assert server.wait(len(STEPS), LIMIT) == len(STEPS)
        for version in thalweg.fedbuff(server, Steps(), MANY, buffer=2, optimizer=with_momentum, record=folder):
            sys.stdout.write(f"{version.number}\n")
            sys.stdout.flush()


def test_a_killed_job_goes_on_with_its_model_its_optimizer_and_its_numbers(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url, folder = f"tcp://127.0.0.1:{port}", tmp_path / "record"
    code = "import sys; from tests.algorithms.test_fedbuff import serve; serve(*sys.argv[1:])"
    words = [sys.executable, "-c", code, url, str(folder)]
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        for name, step in STEPS.items():
            work = lambda name=name, step=step: thalweg.fedbuff_client(  # noqa: E731
                thalweg.TaskClient(url, name=name, timeout=LIMIT), Steps(step), data=()
            )
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            stack.callback(thread.join, LIMIT)
        assert process.stdout is not None
        assert next(line for line in process.stdout if line == "5\n")
        process.kill()
        process.wait(LIMIT)
        done = checkpoint.round_of(folder / CHECKPOINT)
        assert done is not None
        assert done >= 5
        with thalweg.TaskServer(listen=url) as server:
            resumed = thalweg.fedbuff(
                server, Steps(), done + 4, buffer=2, optimizer=with_momentum, resume=folder, data=()
            )
            versions = list(resumed)
    assert [version.number for version in versions] == list(range(done + 1, done + 5))
    rows = list(journal.read(folder / JOURNAL))
    assert [row["round"] for row in rows] == list(range(1, done + 5))
    assert all(earlier["seconds"] < later["seconds"] for earlier, later in pairwise(rows))
    # The journal's updates, applied from the first version on, give the model that the second process ends with.
    at = velocity = 0.0
    for row in rows:
        change = sum(update["weight"] * STEPS[update["member"]] for update in row["updates"]) / len(row["updates"])
        velocity = MOMENTUM * velocity - change
        at -= RATE * velocity
    assert versions[-1].metrics["w"] == pytest.approx(at, rel=1e-4)


def test_a_record_is_not_written_over_and_goes_on_only_as_it_was(
    server: thalweg.TaskServer, members: Members, tmp_path: Path
) -> None:
    members.add("a", Steps())
    assert server.wait(1, LIMIT) == 1
    folder = tmp_path / "record"
    assert len(list(thalweg.fedbuff(server, Steps(), 2, buffer=1, record=folder))) == 2
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"record": folder}, "is a record already"),
        ({"record": folder, "resume": folder}, "resumed where it is"),
        ({"resume": folder}, "all 2 versions of .* are done"),
        ({"resume": folder, "buffer": 3}, r"differ from those of .* in buffer \(1, 3\)"),
        ({"resume": folder, "optimizer": with_momentum}, r"optimizer \(None, SGD\)"),
        ({"resume": tmp_path}, "is no record of asynchronous rounds"),
    ]
    for settings, words in wrong:
        how: dict[str, Any] = {"buffer": 1, **settings}
        with pytest.raises((RecordError, PlanError), match=words):
            thalweg.fedbuff(server, Steps(), 2, **how)
    (version,) = thalweg.fedbuff(server, Steps(), 3, buffer=1, resume=folder)
    assert version.number == 3
