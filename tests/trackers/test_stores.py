"""Jobs of every shape write to trackers' real local stores, which are read back here: no account, no network."""

from __future__ import annotations

import json
import sqlite3
import struct
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

import thalweg
from tests.e2e.conftest import Start, start
from tests.outcomes import outcome_of
from tests.small_apps import Measured
from thalweg.record import Record, entry
from thalweg.trackers import Run

__all__ = ["start"]
pytestmark = pytest.mark.e2e
FLOWER: Final = Path(__file__).parents[1] / "flower" / "apps"
ROUNDS: Final = 3
# More spans than OpenTelemetry lets wait.
SPANS: Final = 5000
APP: Final = """
import numpy as np

class App:
    def model(self):
        return {"w": np.zeros(10, np.float32)}
    def train(self, model, data, config):
        model["w"][:] += 1
        return 1 + data, {"error": float(10 * data + config["round"]), "note": "a text"}
    def client_data(self, *, index, **others):
        return index
    def test_data(self):
        return ()
    def evaluate(self, model, data):
        return {"accuracy": 0.5, "loss": 1.0 / float(model["w"][0])}
"""
# Means of ``error`` over clients 0 and 1 with 1 and 2 samples, by round.
ERRORS: Final = {number: (number + 2 * (10 + number)) / 3 for number in (1, 2, 3)}
Series = Mapping[str, Mapping[int, float]]


def needs(package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: make test-extras, or the extra thalweg[trackers]")


@pytest.fixture
def app(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(APP)
    return "own:App"


def ran(start: Start, *words: str) -> Record:
    """Run a job to its end; return its record."""
    program = start(*words, "--record", "runs", "--json")
    code, out, err = program.end()
    assert code == 0, err
    assert "has failed" not in err
    where = Path(json.loads(out)["record"])
    return Record(Path(program.folder) / where)


def events(folder: Path) -> Series:
    """Read TensorBoard's event files: TFRecords (length, its CRC, protobuf, its CRC) of events with scalars."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = defaultdict(dict)
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + length])
            at += 12 + length + 4
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found[value.tag][event.step] = value.simple_value
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's use of SQLAlchemy
def test_a_star_writes_to_all_trackers_at_once(
    start: Start, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("tensorboardX", "wandb", "mlflow", "sqlalchemy", "trackio", "opentelemetry.exporter.otlp"):
        needs(package)
    settings = {"WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio"), "WANDB_DIR": str(tmp_path)}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with collector() as (url, spans):
        uses = ("tensorboard:boards", "wandb:figures", "mlflow:sqlite:///mlflow.db", "trackio", f"otlp:{url}")
        tracks = [word for one in uses for word in ("--track", one)]
        record = ran(start, "run", "--app", app, "--clients", "2", "--rounds", str(ROUNDS), *tracks)
    name = record.path.name
    for series in (
        events(tmp_path / "boards" / name),
        in_mlflow(tmp_path / "mlflow.db", name),
        in_trackio(tmp_path / "trackio" / "thalweg.db", name),
        in_wandb(tmp_path / "wandb"),
    ):
        assert series["clients/error"] == pytest.approx(ERRORS)
        assert series["model/accuracy"] == {1: 0.5, 2: 0.5, 3: 0.5}
        assert series["model/loss"] == pytest.approx({1: 1.0, 2: 0.5, 3: 1 / 3})
        entries = {one["round"]: one for one in record.rounds()}
        assert series["round/seconds"] == pytest.approx({at: one["seconds"] for at, one in entries.items()})
        assert series["bytes/up"] == {at: one["bytes_up"] for at, one in entries.items()}
    check_spans(spans, record)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(["--aggregation", "tree", "--nodes", "2", "--placement", "worst-fit"], id="tree"),
        pytest.param(["--graph", "ring"], id="graph"),
    ],
)
def test_other_shapes_write_their_figures(start: Start, app: str, tmp_path: Path, shape: list[str]) -> None:
    needs("tensorboardX")
    size = ("--clients", "4", "--rounds", str(ROUNDS))
    record = ran(start, "run", "--app", app, *size, *shape, "--track", "tensorboard:boards")
    series = events(tmp_path / "boards" / record.path.name)
    assert list(series["clients/error"]) == [1, 2, 3]
    entries = list(record.rounds())
    assert series["round/seconds"] == pytest.approx({one["round"]: one["seconds"] for one in entries})
    if "--graph" in shape:
        assert list(series["graph/disagreement"]) == [1, 2, 3]
    else:
        assert series["round/updates"] == {1: 4, 2: 4, 3: 4}


def test_a_flower_app_writes_its_figures(start: Start, tmp_path: Path) -> None:
    needs("tensorboardX")
    needs("flwr")
    record = ran(start, "flower", "run", str(FLOWER / "numpy_messages"), "--track", "tensorboard:boards")
    series = events(tmp_path / "boards" / record.path.name)
    entries = {one["round"]: one for one in record.rounds()}
    assert series["round/seconds"] == pytest.approx({at: one["seconds"] for at, one in entries.items()})
    assert series["model/loss"] == pytest.approx({at: one["loss"] for at, one in entries.items()})
    reported = {name for one in entries.values() for part in one["clients"] for name in dict(part["metrics"] or {})}
    assert {f"clients/{name}" for name in reported} <= series.keys()
    assert reported


def test_a_resumed_job_goes_on_in_the_same_run(start: Start, app: str, tmp_path: Path) -> None:
    needs("tensorboardX")
    track = ("--track", "tensorboard:boards")
    record = ran(start, "run", "--app", app, "--clients", "2", "--rounds", "2", *track)
    again = ran(start, "run", "--resume", str(record.path), "--rounds", "4")
    assert again.path.name == record.path.name
    series = events(tmp_path / "boards" / record.path.name)
    assert list(series["clients/error"]) == [1, 2, 3, 4]


def test_a_server_of_ones_own_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("tensorboardX")
    monkeypatch.chdir(tmp_path)  # the tracker's folder is relative
    app = Measured()
    with thalweg.Server(app, clients=1, record="runs", track="tensorboard:boards") as server:
        client = thalweg.Client(app, server.address, name="a")
        thread = threading.Thread(target=client.run)
        thread.start()
        rounds = [done.metrics["loss"] for done in thalweg.rounds(server, 3)]
        assert server.record is not None
    thread.join()
    series = events(tmp_path / "boards" / server.record.name)
    assert series["model/loss"] == {1: 2.0, 2: 2.0, 3: 2.0}
    assert rounds == [2.0, 2.0, 2.0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's use of SQLAlchemy
def test_mlflow_takes_any_name_of_a_clients_metric(tmp_path: Path) -> None:
    for package in ("mlflow", "sqlalchemy"):
        needs(package)
    from mlflow.tracking import MlflowClient

    from thalweg.trackers.mlflow import Mlflow

    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    names = {"..": "_", ".": "_", "": "_", "a//b": "a__b", "/a": "_a", "../x": "__x", "a/.": "a_.", "é": "_"}
    for at, (given, kept) in enumerate(names.items()):
        tracker = Mlflow(store)
        tracker.begin(Run(f"run-{at}", {}))
        part = {"client": "c", "samples": 1, "metrics": {given: 1.0}, "state": "whole"}
        tracker.round(entry(outcome_of(round=1, participants=[part]), {}, None))
        tracker.end("complete")
        client = MlflowClient(tracking_uri=store)
        (run,) = client.search_runs(["1"], filter_string=f"tags.`thalweg.record` = 'run-{at}'")
        assert f"clients/{kept}" in run.data.metrics, given


def test_a_round_of_many_spans_is_sent_whole() -> None:
    needs("opentelemetry.exporter.otlp")
    from thalweg.trackers.otlp import Otlp

    transfer = {"direction": "up", "bytes": 1, "receive_start": 1.0, "receive_end": 2.0}
    transfers = [{**transfer, "client": f"c{at}"} for at in range(SPANS)]
    whole: Any = {**entry(outcome_of(round=1), {}, None), "transfers": transfers}
    with collector() as (url, spans):
        tracker = Otlp(url)
        tracker.begin(Run("run", {}, began=0.0))
        tracker.round(whole)
        tracker.end("complete")
    assert len(spans) == SPANS + 1


def in_mlflow(path: Path, name: str) -> Series:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{path}")
    experiment = client.get_experiment_by_name("thalweg")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params["job.rounds"]) == (name, "FINISHED", str(ROUNDS))
    return {
        key: {one.step: one.value for one in client.get_metric_history(run.info.run_id, key)}
        for key in run.data.metrics
    }


def in_trackio(path: Path, name: str) -> Series:
    found: dict[str, dict[int, float]] = defaultdict(dict)
    connection = sqlite3.connect(path)
    rows = connection.execute("select run_name, step, metrics from metrics order by id").fetchall()
    connection.close()
    for run, step, text in rows:
        assert run == name
        for key, value in json.loads(text).items():
            if step in (1, 2, 3) and isinstance(value, float):
                found[key][step] = value
    return found


def in_wandb(folder: Path) -> Series:
    """Read the file of an offline run: a header of 7 bytes, then records as LevelDB's log has them."""
    from wandb.proto.wandb_internal_pb2 import Record as Line

    (path,) = folder.glob("offline-run-*/*.wandb")
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for record in logged(path.read_bytes()):
        line = Line.FromString(record)
        values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in line.history.item}
        for key, value in values.items():
            if not key.startswith("_"):
                found[key][values["_step"]] = value
    return found


def logged(content: bytes) -> Iterator[bytes]:
    """Yield the records of a LevelDB log after its header. A record is whole (1) or in parts: 2, 3 ..., 4."""
    block, head, at, parts = 32768, 7, 7, b""
    while at + head <= len(content):
        if block - at % block < head:
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        if kind == 0:
            return
        parts += content[at + head : at + head + length]
        at += head + length
        if kind in (1, 4):
            yield parts
            parts = b""


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Serve as a collector of OpenTelemetry; yield its address and the spans that it gets."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                content = gzip.decompress(content)
            request = ExportTraceServiceRequest.FromString(content)
            spans.extend(
                (one.resource, span)
                for one in request.resource_spans
                for scope in one.scope_spans
                for span in scope.spans
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def check_spans(spans: list[Any], record: Record) -> None:
    """Each round is a trace of its own, whose transfers are within it."""
    traces: dict[bytes, list[Any]] = defaultdict(list)
    for resource, span in spans:
        assert {"thalweg.record": record.path.name}.items() <= attributes(resource).items()
        traces[span.trace_id].append(span)
    assert len(traces) == ROUNDS
    began = datetime_of(record)
    for inside in traces.values():
        (root,) = [one for one in inside if not one.parent_span_id]
        others = [one for one in inside if one.parent_span_id]
        assert all(one.parent_span_id == root.span_id for one in others)
        named = sorted(one.name for one in others)
        assert named == [f"client-{at}: {what}" for at in (1, 2) for what in ("receive model", "send update")]
        assert all(root.start_time_unix_nano <= one.start_time_unix_nano for one in others)
        assert all(one.end_time_unix_nano <= root.end_time_unix_nano for one in others)
        assert root.start_time_unix_nano >= began


def attributes(resource: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in resource.attributes}


def datetime_of(record: Record) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(record.manifest["clock_began"]).timestamp() * 1e9)
