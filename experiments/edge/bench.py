"""Runs one system in a lab with a server and clients, and collects its rounds.

Every system trains the same model on the same data (``app/edge_app/learning.py``). Its server appends a line to a file
after each round. A round counts if the global model has changed in it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, TypedDict

from thalweg.lab import changing
from thalweg.lab.client import RunningLab, start
from thalweg.lab.inside import command
from thalweg.plan import Plan
from thalweg.transports import pki

APP: Final = Path(__file__).parent / "app"
OWN_APP: Final = f"{APP / 'edge_app' / 'own.py'}:App"
BIN: Final = Path(sys.executable).parent
PORT: Final = 7070
# Listen on all addresses of the lab's host. Nothing outside the lab can reach these.
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - see above
# Environment variables of all programs. Each client has one thread, because clients share the machine's cores.
VARIABLES: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
END_SECONDS: Final = 10.0
# What is measured is the time until a model has this accuracy.
TARGET: Final = 0.9
# Seconds that a round of a Flower app may take if the job has no deadline.
NO_DEADLINE: Final = 3600.0


class RoundLine(TypedDict):
    """A line of the app's server: when a round ended, its number, and the accuracy and the digest of its model."""

    time: float
    round: int
    accuracy: float
    model: str


class RunTable(TypedDict):
    """What results keep of a run. ``words`` is a line of the main program's log (``Bench.words``)."""

    rounds: int
    seconds_to_target: float | None
    seconds_by_round: list[float | None]
    accuracy: list[float]
    seconds: float | None
    words: str


@dataclass(frozen=True)
class Job:
    """What a system runs: rounds and clients, how long all of it may take, and how long a round waits for clients."""

    rounds: int = 6
    clients: int = 2
    seconds: float = 180.0
    # Seconds after which a round ends with the updates that have arrived; None: it waits for all.
    deadline: float | None = None
    # Seconds that a client with a broken link may take to come back.
    grace: float = 10.0
    # Units of the model's hidden layer; with 3500 the model has 1 MiB.
    hidden: int = 3500

    @property
    def least(self) -> int:
        """How many clients must be there for a round to begin: all, or one if rounds have a deadline."""
        return self.clients if self.deadline is None else 1


@dataclass
class SystemRun:
    """A system's run. ``words`` is a line of the main program's log (``Bench.words``)."""

    rounds: list[RoundLine] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    words: str = ""
    # The digest of the model that the first round began with.
    first: str = ""

    @property
    def done(self) -> list[RoundLine]:
        """The rounds that changed the model."""
        seen = {self.first}
        kept: list[RoundLine] = []
        for line in self.rounds:
            if line["round"] > 0 and line["model"] not in seen:
                seen.add(line["model"])
                kept.append(line)
        return kept

    def seconds_to(self, accuracy: float) -> float | None:
        """Return the seconds from the start of the programs until a model had this accuracy; None if none had."""
        good = [line["time"] - self.began for line in self.done if line["accuracy"] >= accuracy]
        return min(good) if good else None

    def table(self) -> RunTable:
        """Return what results keep of this run."""
        done = self.done
        times = [self.began, *(line["time"] for line in done)]
        return {
            "rounds": len(done),
            "seconds_to_target": _rounded(self.seconds_to(TARGET)),
            "seconds_by_round": [_rounded(b - a) for a, b in pairwise(times)],
            "accuracy": [round(line["accuracy"], 4) for line in done],
            "seconds": _rounded(self.ended - self.began),
            "words": self.words,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


class Bench:
    """A lab, and the programs that run in it."""

    def __init__(self, lab: RunningLab, folder: Path) -> None:
        """Use ``folder`` for logs and results."""
        self.lab, self.folder = lab, folder
        self.output = folder / "rounds.jsonl"
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self.hidden = 3500

    def start_client(self, number: int, arguments: Sequence[str], more: Mapping[str, str] | None = None) -> None:
        """Start the program of a client, counted from 0, on its host."""
        name = client_name(number)
        self.start(name, name, arguments, more)

    def start(self, name: str, host: str, arguments: Sequence[str], more: Mapping[str, str] | None = None) -> None:
        """Start a program on a host. Its output goes into a log of this name. ``more``: environment variables."""
        place = self.lab.host(host)
        words = command(arguments, namespace=place.namespace, hosts_file=self.lab.hosts_file, parent=os.getpid())
        environment = {
            **os.environ,
            **VARIABLES,
            "EDGE_HIDDEN": str(self.hidden),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            **(more or {}),
        }
        log = self.folder / f"{name}.log"
        with log.open("ab") as stream:
            self.programs[name] = subprocess.Popen(
                words, env=environment, cwd=self.folder, stdout=stream, stderr=stream, start_new_session=True
            )

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a program and to all processes that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.programs[name].pid, number)

    def kill(self, name: str) -> None:
        """End a program at once."""
        self.signal(name, signal.SIGKILL)
        self.programs.pop(name).wait()

    def end(self) -> None:
        """End all programs."""
        for name in self.programs:
            self.signal(name, signal.SIGCONT)
            self.signal(name, signal.SIGTERM)
        until = time.monotonic() + END_SECONDS
        for name, program in self.programs.items():
            with suppress(subprocess.TimeoutExpired):
                program.wait(max(0.1, until - time.monotonic()))
            self.signal(name, signal.SIGKILL)
            program.wait()

    def set(self, link: str, words: str, direction: str | None = None) -> None:
        """Change a link."""
        changing.change(self.lab, link, words, direction)

    def bytes_of(self, link: str, direction: str, *, out: bool = False) -> int:
        """Return the bytes that have entered a link's direction (ab: up, ba: down) so far; with ``out``, left it."""
        for line in self.lab.status().links:
            if line.link == link and line.direction == direction:
                return int(line.bytes_out if out else line.bytes_in)
        raise KeyError(link)

    def rounds(self) -> list[RoundLine]:
        """Return the lines that the server has written so far."""
        if not self.output.exists():
            return []
        return [json.loads(line) for line in self.output.read_text().splitlines() if line.endswith("}")]

    def words(self, name: str) -> str:
        """Return the last line of a program's log that names an error or a round, or else its last line."""
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        telling = [line for line in lines if ("error" in line.lower() or "round" in line.lower()) and "──" not in line]
        return (telling or lines or [""])[-1].strip()[:300]


@contextmanager
def lab_of(network: str, clients: int) -> Iterator[RunningLab]:
    """Make a lab: a star whose links are all like ``network``, such as ``rate=20mbit,rtt=40ms``."""
    from thalweg.plan.emulated import network_of

    spec = network_of(Plan.of({"job": {"clients": clients}}).merge({"network": network}))
    lab = start(spec.text(), "edge")
    try:
        lab.start()
        yield lab
    finally:
        lab.down()


def first_model(hidden: int) -> str:
    """Return the digest of the model that the first round begins with."""
    code = "from edge_app import learning; print(learning.digest(learning.new_model()))"
    environment = {**os.environ, **VARIABLES, "EDGE_HIDDEN": str(hidden), "PYTHONPATH": str(APP)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


# Starts a system's programs; returns the name of the main one, with whose end the run ends.
System = Callable[[Bench, Job], str]


def client_name(number: int) -> str:
    """Return the name of a client, counted from 0, and of its host."""
    return f"client-{number + 1}"


def node_config(number: int, job: Job) -> list[str]:
    """Return the arguments that tell a node of the Flower app its part of the data."""
    return ["--node-config", f"partition-id={number} num-partitions={job.clients}"]


def flower(bench: Bench, job: Job) -> str:
    """Start Flower's own SuperLink, SuperNodes and `flwr run`, as its documentation deploys them, without TLS."""
    home = bench.folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "edge"\n[superlink.edge]\naddress = "127.0.0.1:9092"\ninsecure = true\n'
    )
    more = {"FLWR_HOME": str(home)}
    link = [str(BIN / "flower-superlink"), "--insecure", "--host", ALL_ADDRESSES, "--port", "9092"]
    link.append("--disable-runtime-dependency-installation")
    bench.start("superlink", "server", link, more)
    for number in range(job.clients):
        start_supernode(bench, number, job)
    run = [str(BIN / "python"), "-m", "experiments.edge.flwr_run", str(APP), *_run_config(bench, job)]
    bench.start("app", "server", run, {**more, "PYTHONPATH": str(APP.parent.parent.parent)})
    return "app"


def start_supernode(bench: Bench, number: int, job: Job) -> None:
    """Start one of Flower's SuperNodes on its client's host."""
    node = [str(BIN / "flower-supernode"), "--insecure", "--superlink", "server:9092"]
    node += ["--host", "127.0.0.1", "--port", "9094", *node_config(number, job)]
    home = bench.folder / f"home-{number}"
    home.mkdir(exist_ok=True)
    bench.start_client(number, node, {"FLWR_HOME": str(home)})


def _run_config(bench: Bench, job: Job) -> list[str]:
    """Return the arguments with the Flower app's configuration."""
    timeout = job.deadline or NO_DEADLINE
    config = f'num-server-rounds={job.rounds} clients={job.clients} least={job.least} output="{bench.output}"'
    return ["--run-config", f"{config} timeout={timeout}"]


def authority(bench: Bench, job: Job, role: str) -> Path:
    """Make an authority with a certificate for the server and a token for each client; return its folder."""
    folder = bench.folder / "pki"
    pki.init(folder, ["server"], 365)
    for number in range(job.clients):
        pki.issue(folder, client_name(number), 365, role=role)
    return folder


def client_arguments(bench: Bench, number: int, job: Job) -> list[str]:
    """Return the arguments of a client of thalweg: its name, its token, and how long it tries to connect."""
    name = client_name(number)
    return ["--name", name, "--token-file", str(bench.folder / "pki" / f"{name}.token"), "--timeout", str(job.seconds)]


def adapter(transport: str) -> System:
    """Return the system that runs the Flower app by `thalweg flower` over a transport."""

    def run(bench: Bench, job: Job) -> str:
        server = [str(BIN / "thalweg"), "flower", "server", str(APP)]
        server += ["--listen", f"{transport}://{ALL_ADDRESSES}:{PORT}"]
        server += ["--pki", str(authority(bench, job, "task-member"))]
        server += ["--clients", str(job.clients), "--grace", str(job.grace)]
        bench.start("app", "server", [*server, *_run_config(bench, job)])
        for number in range(job.clients):
            node = [str(BIN / "thalweg"), "flower", "client", str(APP), f"{transport}://server:{PORT}"]
            bench.start_client(number, [*node, *client_arguments(bench, number, job), *node_config(number, job)])
        return "app"

    return run


PLAN: Final = """
[job]
rounds = {rounds}
clients = {clients}
grace = {grace}
enough = 1
{deadline}
[app]
object = "{app}"
[app.options]
output = "{output}"
[security]
pki = "{pki}"
"""


def own(transport: str) -> System:
    """Return the system that runs thalweg's own rounds over a transport."""

    def run(bench: Bench, job: Job) -> str:
        deadline = "" if job.deadline is None else f"deadline = {job.deadline}"
        plan, trust = bench.folder / "plan.toml", authority(bench, job, "client")
        words = {"app": OWN_APP, "output": bench.output, "pki": trust, "deadline": deadline}
        plan.write_text(PLAN.format(rounds=job.rounds, clients=job.clients, grace=job.grace, **words))
        server = [str(BIN / "thalweg"), "server", str(plan), "--listen", f"{transport}://{ALL_ADDRESSES}:{PORT}"]
        bench.start("app", "server", server)
        for number in range(job.clients):
            start_client(bench, transport, number, job)
        return "app"

    return run


def start_client(bench: Bench, transport: str, number: int, job: Job) -> None:
    """Start a client of thalweg's own rounds on its host."""
    client = [str(BIN / "thalweg"), "client", f"{transport}://server:{PORT}", "--app", OWN_APP]
    bench.start_client(number, [*client, *client_arguments(bench, number, job)])


SYSTEMS: Final[Mapping[str, System]] = {
    "Flower 1.42": flower,
    "Flower app, tcp": adapter("tcp"),
    "Flower app, grpc": adapter("grpc"),
    "Flower app, ltp": adapter("ltp"),
    "own rounds, tcp": own("tcp"),
    "own rounds, quic": own("quic"),
    "own rounds, ltp": own("ltp"),
    "own rounds, grpc": own("grpc"),
    "own rounds, udp": own("udp"),
    "Flower app, quic": adapter("quic"),
    "Flower app, udp": adapter("udp"),
}


def measured(
    system: str,
    network: str,
    job: Job,
    during: Callable[[Bench, Callable[[], bool]], None] | None = None,
    keep: Path | None = None,
) -> SystemRun:
    """Run a system once. ``during`` may change the lab meanwhile; it gets a function that says whether the run is over.

    The run is over when the main program has ended, when all rounds are done, or after the job's seconds. Logs are kept
    in the folder ``keep``, if it is given.
    """
    ended = SystemRun(first=first_model(job.hidden))
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edge-")))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        bench = Bench(stack.enter_context(lab_of(network, job.clients)), folder.resolve())
        stack.callback(bench.end)
        bench.hidden = job.hidden
        ended.began = time.time()
        main = SYSTEMS[system](bench, job)

        def over() -> bool:
            lines = bench.rounds()
            return (
                time.time() - ended.began > job.seconds
                or bench.programs[main].poll() is not None
                or bool(lines and lines[-1]["round"] >= job.rounds)
            )

        if during is not None:
            during(bench, over)
        while not over():
            time.sleep(0.2)
        ended.rounds = bench.rounds()
        ended.ended = time.time()
        ended.words = bench.words(main)
    return ended
