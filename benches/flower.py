"""An unmodified Flower app over thalweg, compared with Flower's SuperLink and SuperNodes, and with tasks.

Blocks take turns: each starts one system, runs the same app for a few rounds, and stops it, so that only one is in
memory at a time. A block's first round, in which nodes connect, does not count.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from benches.common import FOLDER, MIB, Figure, Spread, note, workers
from thalweg import TaskServer, Tensors

APP: Final = FOLDER / "benches" / "flower_app"
CLIENTS: Final = 4
#: Number of arrays in the app's payload.
ARRAYS: Final = 8
#: Rounds of the vision app, and by how much its accuracy may differ from the accuracy on Flower's engine.
ROUNDS: Final = 5
POINTS: Final = 0.002
#: Timeout in seconds for the start of a system and for a run.
TIMEOUT: Final = 600.0
#: Seconds that a program gets to end.
END: Final = 20.0
BIN: Final = Path(sys.executable).parent


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def started(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in the background, and end its process group afterwards, with all processes that it has started."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def peak_rss(pid: int) -> int:
    """Return the peak resident memory of a running process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a program accepts connections."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}: {log.read_text()[-2000:]}")
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} does not listen at {port}: {log.read_text()[-2000:]}")


def run_config(size: int, rounds: int, output: Path) -> str:
    return f'num-server-rounds={rounds} clients={CLIENTS} mib={size // MIB} output="{output}"'


def flower(size: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Run the app on Flower's own SuperLink and SuperNodes, as its documentation deploys them on one machine."""
    port, output = free_port(), folder / "rounds.json"
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "bench"\n[superlink.bench]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
    environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
    link = [str(BIN / "flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    link.append("--disable-runtime-dependency-installation")
    with ExitStack() as running:
        log = folder / "superlink.log"
        superlink = running.enter_context(started(link, environment, log))
        listening(port, superlink, log)
        before = peak_rss(superlink.pid)
        for number in range(CLIENTS):
            node = [str(BIN / "flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
            node += ["--host", "127.0.0.1", "--port", str(free_port())]
            node += ["--node-config", f"partition-id={number} num-partitions={CLIENTS}"]
            running.enter_context(started(node, environment, folder / f"supernode-{number}.log"))
        command = [str(BIN / "flwr"), "run", str(APP), "bench", "--stream"]
        command += ["--run-config", run_config(size, rounds, output)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if not output.exists():
            raise RuntimeError(f"Flower's run left no result: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        report: dict[str, Any] = json.loads(output.read_text())
        report["superlink_bytes"] = peak_rss(superlink.pid) - before
    return report


def ours(fold: str) -> Callable[[int, int, Path], dict[str, Any]]:
    """Return a function that runs the app over thalweg with this value of ``--fold``."""

    def run(size: int, rounds: int, folder: Path) -> dict[str, Any]:
        output = folder / "rounds.json"
        command = [sys.executable, "-m", "thalweg", "flower", "run", str(APP), "--clients", str(CLIENTS), "--json"]
        command += ["--fold", fold, "--run-config", run_config(size, rounds, output), "--record", str(folder / "runs")]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if done.returncode or not output.exists():
            raise RuntimeError(f"thalweg's run failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        report: dict[str, Any] = json.loads(output.read_text())
        report["told"] = json.loads(done.stdout)
        return report

    return run


def tasks(reduce: bool) -> Callable[[int, int, Path], dict[str, Any]]:
    """Return a function that moves the same bytes by tasks without Flower. Results are folded or collected."""

    def run(size: int, rounds: int, folder: Path) -> dict[str, Any]:
        seconds = []
        with (
            TaskServer() as server,
            workers([["tasks", server.address, f"client-{number}", "1"] for number in range(CLIENTS)]),
        ):
            if server.wait(CLIENTS, 60.0) != CLIENTS:
                raise RuntimeError("not all clients joined")
            for number in range(rounds):
                payload = Tensors({"payload": np.full(size // 4, number, np.float32)})
                begun = time.perf_counter()
                with server.send(None, payload, reduce="mean" if reduce else None) as task:
                    _ = task.mean() if reduce else task.replies()
                    seconds.append(time.perf_counter() - begun)
        return {"seconds": seconds}

    return run


WAYS: Final[dict[str, Callable[[int, int, Path], dict[str, Any]]]] = {
    "flower": flower,
    "folded": ours("auto"),
    "collected": ours("off"),
    "task folded": tasks(reduce=True),
    "task collected": tasks(reduce=False),
}


def npy_seconds(size: int) -> float:
    """Return the median seconds in which Flower's ``.npy`` code reads and writes a client's arrays."""
    from flwr.app import ArrayRecord

    seconds = []
    record = ArrayRecord([np.ones(size // 4 // ARRAYS, np.float32) for _ in range(ARRAYS)])
    for _ in range(15):
        begun = time.perf_counter()
        record = ArrayRecord(record.to_numpy_ndarrays())
        seconds.append(time.perf_counter() - begun)
    return Spread.of(seconds).median


def mean_seconds(size: int) -> float:
    """Return the median seconds in which Flower's FedAvg computes the mean of all clients' replies."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg

    from thalweg.flower import compat

    compat.identify(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    arrays = ArrayRecord([np.ones(size // 4 // ARRAYS, np.float32) for _ in range(ARRAYS)])
    metrics = MetricRecord({"num-examples": 1})
    replies = [Message(RecordDict({"arrays": arrays, "metrics": metrics}), 1, "train") for _ in range(CLIENTS)]
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        FedAvg().aggregate_train(1, replies)
        seconds.append(time.perf_counter() - begun)
    return Spread.of(seconds).median


def measured(size: int, blocks: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Run the ways alternately, in blocks of rounds. The first round of a block does not count."""
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    for block in range(blocks):
        for name, way in WAYS.items():
            with tempfile.TemporaryDirectory() as folder:
                one = way(size, rounds + 1, Path(folder))
            one["seconds"] = one["seconds"][1:]
            reports[name].append(one)
            note(f"{size // MIB} MiB, block {block + 1}/{blocks}, {name}: {Spread.of(one['seconds']).text(1, 3)} s")
    return reports


def beside(size: int, blocks: int, rounds: int, least: float) -> list[Figure]:
    """Measure rounds, memory and the adapter's cost at one size. ``least``: how many times as fast as Flower to be."""
    reports = measured(size, blocks, rounds)
    seconds = {name: Spread.of([one for block in of for one in block["seconds"]]) for name, of in reports.items()}
    label = f"a Flower app's round of {size // MIB} MiB with {CLIENTS} clients"
    details = {name: vars(spread) for name, spread in seconds.items()}
    figures = []
    for name in ("folded", "collected"):
        ratio = seconds["flower"].median / seconds[name].median
        value = f"{seconds[name].text(1e3)} ms, Flower {seconds['flower'].text(1, 2)} s, {ratio:.0f} times as fast"
        figures.append(Figure(f"{label}, {name}", value, f"{least:.0f} times Flower", ratio >= least, details))
    return [*figures, *memory(size, reports), *costs(size, seconds)]


def memory(size: int, reports: dict[str, list[dict[str, Any]]]) -> list[Figure]:
    """Return by how much a server's memory grows after the app has made its model, in multiples of the model's size."""
    models = {name: max((one["peak_bytes"] - one["before_bytes"]) / size for one in reports[name])
              for name in ("flower", "folded", "collected")}  # fmt: skip
    link = max(one["superlink_bytes"] / size for one in reports["flower"])
    label = f"server's memory, a Flower app of {size // MIB} MiB with {CLIENTS} clients"
    beside = f"Flower {models['flower']:.1f}, its SuperLink {link:.1f}"
    details = {"models": models, "superlink": link}
    return [
        Figure(
            f"{label}, {name}", f"{models[name]:.1f} models; {beside}", f"under {most}", models[name] < most, details
        )
        for name, most in {"folded": 3, "collected": CLIENTS + 3}.items()
    ]


def costs(size: int, seconds: dict[str, Spread]) -> list[Figure]:
    """Measure the adapter's time: the app's time, minus that of the same task without Flower and that of Flower's code.

    Flower's code writes and reads ``.npy`` bytes on the clients. If replies are collected, it also takes the mean on
    the server.
    """
    cores = min(CLIENTS, len(os.sched_getaffinity(0)))
    each, mean = npy_seconds(size), mean_seconds(size)
    figures = []
    for name, more in (("folded", 0.0), ("collected", mean)):
        task, own = seconds[f"task {name}"], each * CLIENTS / cores + more
        beyond = seconds[name].median - task.median - own
        value = (
            f"{beyond * 1e3:.1f} ms, {beyond / own:.2f} of Flower's own {own * 1e3:.1f} ms ({CLIENTS} clients of "
            f"{each * 1e3:.1f} ms on {cores} cores, mean {more * 1e3:.1f} ms); the task takes {task.text(1e3)} ms"
        )
        details = {"seconds": beyond, "npy_seconds": each, "mean_seconds": more}
        label = f"the adapter's own cost of {size // MIB} MiB, {name}"
        figures.append(Figure(label, value, "at most Flower's own", beyond <= own, details))
    return figures


def small() -> list[Figure]:
    """Measure updates of 8 MiB."""
    return beside(8 * MIB, blocks=3, rounds=2, least=50)


def large() -> list[Figure]:
    """Measure updates of 232 MiB."""
    return beside(232 * MIB, blocks=3, rounds=2, least=10)


def accuracy() -> list[Figure]:
    """Compare the accuracy of a vision app after five rounds with one seed, on Flower's engine and over thalweg."""
    from tests.flower.learning import WAYS as LEARNING
    from tests.flower.learning import learned, prepare, same_bits

    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        results = {way: learned(Path(folder), way, ROUNDS) for way in LEARNING}
    model, (*_, flowers) = results.pop("flower")
    figures = []
    for way, (learned_here, (*_, share)) in results.items():
        bits = "the same bits" if same_bits(learned_here, model) else "other bits"
        value = f"{share:.1%}, Flower {flowers:.1%}; {bits}"
        good = abs(share - flowers) <= POINTS and (way != "collected" or same_bits(learned_here, model))
        limit = f"within {POINTS * 100:.1f} points{'; the same bits' if way == 'collected' else ''}"
        details = {"accuracy": share, "flower": flowers}
        figures.append(Figure(f"accuracy of a vision app after {ROUNDS} rounds, {way}", value, limit, good, details))
    return figures
