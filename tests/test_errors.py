"""Every kind of error: the document lists it, the API raises it with its attributes, a command prints it."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import thalweg
from thalweg import _core, doctor, errors, extras
from thalweg.brokers import mosquitto
from thalweg.brokers.base import Broker, BrokerPlace
from thalweg.cli import Commands, app
from thalweg.doctor.probing import ProbeOptions
from thalweg.lab import state
from thalweg.ui.output import Json, output

ROOT = Path(__file__).parents[1]
# Seconds after which a hanging test fails.
LIMIT = 60.0
FIELDS = ["cause", "hint", "kind", "operation", "retry"]
# Number of bytes: more than half of a process's address space.
HALF = [("w", "F32", [(1 << 44) - 1])]
# The size of an update for `doctor`. It fails to connect before it sends any of it.
SMALL = 1 << 16

# All apps are in one file, because a process loads only one module of a name.
APPS = Path(__file__).parent / "small_apps.py"
# Programs that need other rights, or that get a signal. Each prints an error's class and attributes as JSON.
CHILD = """
import json, os, signal, sys
import numpy as np
import thalweg
from thalweg import _core
from typer.testing import CliRunner
from thalweg.cli import app

class App:
    def model(self): return {"w": np.zeros(10, np.float32)}
    def train(self, model, data, config): return 1, {}

def show(call):
    try:
        call()
    except thalweg.ThalwegError as error:
        fields = {name: getattr(error, name) for name in ("kind", "operation", "cause", "hint", "retry")}
        print(json.dumps({"class": type(error).__name__, **fields}), flush=True)

server = thalweg.Server(App(), clients=1)
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    server.wait()
except KeyboardInterrupt:
    print(json.dumps({"class": "KeyboardInterrupt"}), flush=True)

if os.fork() == 0:
    show(server.round)
    os._exit(0)
os.wait()
server.close()
# It imports what it needs while it may read that.
CliRunner().invoke(app, ["doctor", "--serve", "tcp://127.0.0.1:0", "--seconds", "0", "--json"])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
show(lambda: _core.enter_namespace("/proc/1/ns/net"))
with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as file:
    port = int(file.read()) - 1
if port > 0:
    app(["doctor", "--serve", f"tcp://127.0.0.1:{port}", "--json"])
"""


class App:
    """An app without PyTorch."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value

    def model(self) -> dict[str, Any]:
        return {"w": np.zeros(10, np.float32)}

    def train(self, model: Any, data: Any, config: Any) -> tuple[int, dict[str, Any]]:
        model["w"][:] = self.value
        return 1, {}


class Unmeasured(App):
    def train(self, model: Any, data: Any, config: Any) -> tuple[int, dict[str, Any]]:
        return 1, {"norm": object()}


@contextmanager
def server(**more: Any) -> Iterator[thalweg.Server]:
    with thalweg.Server(App(), clients=more.pop("clients", 1), **more) as made:
        yield made


@contextmanager
def listener(answer: bytes | None = None) -> Iterator[str]:
    """Yield the URL of a port that answers each connection with bytes, or by closing it."""
    kept: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = port.accept()
                kept.append(connection)  # closed at the end, also if its peer resets it
                if answer is None:
                    connection.recv(1)
                    connection.close()
                else:
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as port:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{port.getsockname()[1]}"
        port.shutdown(socket.SHUT_RDWR)
        thread.join(60)  # it may have accepted one more connection
    for connection in kept:
        connection.close()


@contextmanager
def silent() -> Iterator[str]:
    """Yield the URL of a port that accepts a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        yield f"tcp://127.0.0.1:{port.getsockname()[1]}"


@contextmanager
def nobody() -> Iterator[str]:
    """Yield a URL at which nobody listens. A socket that does not listen holds the port."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def half_of_memory() -> Iterator[None]:
    """Reserve half of the address space, if the system allows that. Then it refuses another half."""
    taken = []
    with suppress(thalweg.CoreError):
        taken.append(_core.Arena(_core.Layout(HALF)))
    yield
    taken.clear()


def probe(url: str) -> None:
    doctor.path_to(url, ProbeOptions(), SMALL)


def train(app: Any) -> None:
    """Take part in a round in this thread; the server runs it in another."""
    with thalweg.Server(App(), clients=1) as made:
        client = thalweg.Client(app, made.address, name="a", data=())

        def rounds() -> None:
            with suppress(thalweg.CoreError):
                list(thalweg.fedavg(made, 1))

        threading.Thread(target=rounds, daemon=True).start()
        client.run()


def plan(path: Path, of: str, **job: Any) -> thalweg.Plan:
    return thalweg.Plan.of(
        {
            "app": f"{APPS}:{of}",
            "job": {"clients": 1, "rounds": 1, **job},
            "transport": {"url": "tcp" if "graph" in job else "memory"},
            "record": {"folder": str(path / "runs")},
        }
    )


# ---- Calls of the API that raise errors, by kind


def address(path: Path) -> None:
    probe("tcp://127.0.0.1:99999")


def inuse(path: Path) -> None:
    with server() as first, server(listen=first.address):
        pass


def unreachable(path: Path) -> None:
    with nobody() as url:
        probe(url)


def timeout(path: Path) -> None:
    with thalweg.TaskServer() as tasks:
        tasks.send(None, to="nobody").next_reply(timeout=0.01)


def closed(path: Path) -> None:
    with listener() as url:
        probe(url)


def corrupt(path: Path) -> None:
    with listener(b"x" * 4096) as url:
        probe(url)


def security(path: Path) -> None:
    _core.pki_issuer("zz")


def unsupported(path: Path) -> None:
    thalweg.TaskServer(options={"nosuch": "1"})


def system(path: Path) -> None:
    _core.enter_namespace("/proc/self/status")


def options(path: Path) -> None:
    with thalweg.TaskServer() as tasks:
        tasks.send(None, to="nobody", deadline=-1)


def layout(path: Path) -> None:
    _core.Layout([("w", "F99", [1])])


def config(path: Path) -> None:
    _core.Lab("{}")


def of_round(path: Path) -> None:
    thalweg.run(plan(path, "Diverging"))


def rejected(path: Path) -> None:
    with server() as made:
        client = thalweg.Client(App(), made.address, name="a", data=())

        def rounds() -> None:
            with suppress(thalweg.CoreError):
                made.round()

        made.wait(0)
        client._core.join()
        threading.Thread(target=rounds, daemon=True).start()
        assert client._core.next() is not None
        client.arena["w"].fill(np.nan)
        client._core.submit(1, 1.0, "{}")


def task(path: Path) -> None:
    with thalweg.TaskServer() as tasks:
        sent = tasks.send(None, {"w": np.zeros(3, np.float32)}, to="nobody", reduce="mean")
        sent.cancel()
        sent.mean()


def refused(path: Path) -> None:
    with server(clients=2) as made:
        first = thalweg.Client(App(), made.address, name="anna", data=())
        first._core.join()
        with closing(first):
            thalweg.Client(App(), made.address, name="anna", data=(), timeout=0.2).run()


def memory(path: Path) -> None:
    with half_of_memory():
        _core.Arena(_core.Layout(HALF))


def of_plan(path: Path) -> None:
    thalweg.Plan.of({"job": {"rounds": -1}})


def of_data(path: Path) -> None:
    from thalweg import data

    data.load("cifar10", root=path)


def of_model(path: Path) -> None:
    thalweg.Arena.bind({"w": np.array(["a", "text"])})


def of_app(path: Path) -> None:
    thalweg.run(plan(path, "Failing"))


def of_metrics(path: Path) -> None:
    train(Unmeasured())


def of_link(path: Path) -> None:
    thalweg.Server(App(), clients=1, listen="tcp://0.0.0.0:0")


def round_error(path: Path) -> None:
    thalweg.run(plan(path, "Failing", graph="full", clients=2))


def of_record(path: Path) -> None:
    thalweg.Server(App(), clients=1, resume=path / "nosuch")


def of_lab(path: Path) -> None:
    state.find("nosuch")


def of_package(path: Path) -> None:
    thalweg.run(thalweg.Plan.of({"job": {"graph": "3-regular", "clients": 4}, "model": {"name": "payload:1KiB"}}))


def of_broker(path: Path) -> None:
    Broker(mosquitto.Mosquitto(), BrokerPlace())


# ---- Commands that end with an error of the kind


def doctor_of(url: str) -> list[str]:
    return ["doctor", url]


def run_of(path: Path, *more: str) -> list[str]:
    return ["run", *more, "--clients", "1", "--rounds", "1", "--transport", "memory", "--record", str(path / "runs")]


def damaged_secret(path: Path) -> list[str]:
    assert CliRunner().invoke(app, ["pki", "init", "--dir", str(path / "pki"), "--host", "localhost"]).exit_code == 0
    (path / "pki" / "secret").write_text("zz")
    return ["pki", "issue", "anna", "--dir", str(path / "pki")]


@contextmanager
def name_taken(path: Path) -> Iterator[list[str]]:
    with server(clients=2) as made:
        first = thalweg.Client(App(), made.address, name="anna", data=())
        first._core.join()
        yield ["client", made.address, "--name", "anna", "--timeout", "0.2"]
        first.close()


@contextmanager
def with_url(url: Any, *before: str) -> Iterator[list[str]]:
    with url as address:
        yield [*before, address.address if isinstance(address, thalweg.Server) else address]


@contextmanager
def big(path: Path) -> Iterator[list[str]]:
    with half_of_memory():
        yield run_of(path, "--model", "payload:70000GB")


@dataclass(frozen=True)
class Case:
    """A kind of error: its class, a call that raises it, whether to retry, a command, and that command's exit code.

    If ``command`` is missing, the test makes a command raise the error of the API.
    """

    of: type[errors.ThalwegError]
    api: Callable[[Path], None]
    command: Callable[[Path], Any] | None = None
    exit: int = 1
    retry: bool = False


core = errors.CoreError
CASES = {
    "address": Case(core, address, lambda _: doctor_of("tcp://127.0.0.1:99999"), exit=2),
    "inuse": Case(core, inuse, lambda _: with_url(server(), "doctor", "--seconds", "0", "--serve")),
    "unreachable": Case(core, unreachable, lambda _: with_url(nobody(), "doctor"), retry=True),
    "timeout": Case(core, timeout, retry=True),
    "closed": Case(core, closed, lambda _: with_url(listener(), "doctor"), retry=True),
    "corrupt": Case(core, corrupt, lambda _: with_url(listener(b"x" * 4096), "doctor"), retry=True),
    "security": Case(core, security, damaged_secret),
    "unsupported": Case(
        core,
        unsupported,
        lambda _: ["forward", "--listen", ":0", "--via", "tcp://127.0.0.1:1", "--congestion", "nosuch"],
        exit=2,
    ),
    "system": Case(core, system),
    "options": Case(
        core, options, lambda _: ["forward", "--listen", ":0", "--via", "tcp://127.0.0.1:1", "--window", "1"], exit=2
    ),
    "config": Case(core, config),
    "layout": Case(core, layout, lambda path: run_of(path, "--model", "payload:80000GB"), exit=2),
    "round": Case(core, of_round, lambda path: run_of(path, "--app", f"{APPS}:Diverging")),
    "rejected": Case(core, rejected),
    "task": Case(core, task),
    "refused": Case(core, refused, name_taken, retry=True),
    "memory": Case(core, memory, big),
    "plan": Case(errors.PlanError, of_plan, lambda path: ["run", str(path / "nosuch.toml")], exit=2),
    "data": Case(
        errors.DataError, of_data, lambda path: run_of(path, "--data", "cifar10", "--data-root", str(path)), exit=2
    ),
    "model": Case(errors.ModelError, of_model, lambda path: run_of(path, "--model", "payload:none"), exit=2),
    "app": Case(errors.AppError, of_app, lambda path: run_of(path, "--app", f"{APPS}:Failing")),
    "metrics": Case(
        errors.MetricsError,
        of_metrics,
        lambda path: run_of(path, "--app", f"{APPS}:Unmeasured"),
        exit=2,
    ),
    "link": Case(errors.LinkError, of_link, lambda _: ["doctor", "--serve", "tcp://0.0.0.0:0"]),
    "record": Case(errors.RecordError, of_record, lambda path: ["report", str(path / "nosuch")]),
    "lab": Case(errors.LabError, of_lab, lambda _: ["lab", "status", "nosuch"]),
    "package": Case(
        errors.PackageError,
        of_package,
        lambda _: ["run", "--graph", "3-regular", "--clients", "4", "--model", "payload:1KiB"],
        exit=2,
    ),
    "broker": Case(errors.BrokerError, of_broker, lambda path: [*run_of(path), "--transport", "mqtt"]),
}
# A kind that errors of two classes have.
ROUND_ERROR = Case(errors.RoundError, round_error)
# Kinds that need a process of their own, and kinds that the core never passes on, each with the place of a test that
# provokes it.
ELSEWHERE = {
    "permission": "tests/test_errors.py",
    "forked": "tests/test_forking.py",
    "interrupted": "tests/e2e/test_interrupt.py",
    "cancelled": "crates/conformance/src/cancelling.rs",
}
# Kinds that only commands have.
OF_COMMANDS = ("usage", "other")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mosquitto.Mosquitto, "find", lambda _: None)
    monkeypatch.setattr(extras, "has", lambda package: package != "networkx")
    return tmp_path


def rows() -> dict[str, list[str]]:
    """Return the rows of the document's table, by kind: meaning, example, retry and exit code."""
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    part = text.partition("\n## Kinds\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in part.splitlines() if line[:3] == "| `"]
    assert all(len(row) == 6 for row in cells), cells
    kinds = [row[0].strip("`") for row in cells]
    assert len(kinds) == len(set(kinds)), "a kind has one row"
    return {kind: row[1:] for kind, row in zip(kinds, cells, strict=True)}


def subclasses(of: type[errors.ThalwegError]) -> set[type[errors.ThalwegError]]:
    return {of} | {deeper for one in of.__subclasses__() for deeper in subclasses(one)}


def test_every_kind_has_a_row_and_a_test() -> None:
    core_kinds = set(_core.error_kinds())
    of_classes = {one.kind for one in subclasses(errors.ThalwegError) if one.__module__ == errors.__name__}
    tested = set(CASES) | set(ELSEWHERE)
    assert core_kinds - tested == set(), "provoke these kinds of the core in CASES"
    assert of_classes - tested == {"other"}, "provoke these kinds in CASES"
    assert set(rows()) == tested | set(OF_COMMANDS), "list them in docs/reference/errors.md"
    for kind, file in ELSEWHERE.items():
        assert (ROOT / file).is_file(), kind


@pytest.mark.parametrize(("peer", "kind"), [("nobody", "unreachable"), ("silent", "timeout")])
def test_a_client_that_is_not_let_in_says_why(peer: str, kind: str) -> None:
    """The error has the kind of its cause, and retry may help. If a peer refuses the client, the kind is "refused"."""
    with nobody() if peer == "nobody" else silent() as url, pytest.raises(thalweg.CoreError) as caught:
        thalweg.Client(App(), url, name="anna", data=(), timeout=0.2).run()
    assert (caught.value.kind, caught.value.retry) == (kind, True)


def test_the_table_says_whether_retry_can_help_and_the_exit_code() -> None:
    for kind, case in CASES.items():
        _, _, _, retry, code = rows()[kind]
        assert (retry.startswith("yes"), code) == (case.retry, str(case.exit)), kind


@pytest.mark.parametrize("case", [*CASES.values(), ROUND_ERROR], ids=[*CASES, "RoundError"])
def test_the_api_raises_it_with_its_attributes(case: Case, path: Path) -> None:
    with pytest.raises(case.of) as caught:
        case.api(path)
    error = caught.value
    assert (CASES.get(error.kind), error.retry) == (CASES["round"] if case is ROUND_ERROR else case, case.retry)
    assert isinstance(error.operation, str)
    assert error.cause
    assert error.hint
    assert "\n" not in error.cause + error.hint + error.operation


@pytest.mark.parametrize("kind", [kind for kind, case in CASES.items() if case.command is not None])
def test_a_command_prints_its_five_keys_and_ends_with_its_code(kind: str, path: Path) -> None:
    case = CASES[kind]
    assert case.command is not None
    made = case.command(path)
    if isinstance(made, list):
        done = CliRunner().invoke(app, [*made, "--json"])
    else:
        with made as command:
            done = CliRunner().invoke(app, [*command, "--json"])
    check(done, kind, case)


@pytest.mark.parametrize("kind", [kind for kind, case in CASES.items() if case.command is None])
def test_a_kind_that_no_command_meets_would_be_printed_alike(kind: str, path: Path) -> None:
    case = CASES[kind]
    probing = typer.Typer(cls=Commands, pretty_exceptions_enable=False)

    @probing.command("probe")
    def command(*, as_json: Json = False) -> None:
        with output(as_json=as_json):
            case.api(path)

    @probing.command("another")
    def another() -> None:
        """A second command, so that typer makes subcommands of both."""

    check(CliRunner().invoke(probing, ["probe", "--json"]), kind, case)


def check(done: Any, kind: str, case: Case) -> None:
    printed = json.loads(done.stdout)["error"]
    assert sorted(printed) == FIELDS
    assert (printed["kind"], printed["retry"], done.exit_code) == (kind, case.retry, case.exit)
    *_, cause, hint = done.stderr.splitlines()
    line = f"{printed['operation']}: {printed['cause']}" if printed["operation"] else printed["cause"]
    assert (cause, hint) == (f"error: {line}", f"hint: {printed['hint']}")


def test_a_command_line_that_cannot_be_parsed_is_of_kind_usage() -> None:
    done = CliRunner().invoke(app, ["nosuch", "--json"])
    printed = json.loads(done.stdout)["error"]
    assert (sorted(printed), printed["kind"], done.exit_code) == (FIELDS, "usage", 2)


@lru_cache
def in_a_child() -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_signal_that_ends_a_wait_is_the_handlers_own_exception() -> None:
    assert in_a_child()[1][0] == {"class": "KeyboardInterrupt"}


def test_a_fork_has_its_attributes() -> None:
    attributes = in_a_child()[1][1]
    assert (attributes["class"], attributes["kind"], attributes["operation"], attributes["retry"]) == (
        "CoreError",
        "forked",
        "Server",
        False,
    )
    assert attributes["cause"]
    assert attributes["hint"]


def test_a_permission_that_is_denied_has_its_attributes_and_a_command_prints_it() -> None:
    code, said = in_a_child()
    attributes = said[2]
    assert (attributes["class"], attributes["kind"], attributes["retry"]) == ("CoreError", "permission", False)
    assert attributes["cause"]
    assert attributes["hint"]
    if len(said) == 3:
        pytest.skip("this system gives every port to everybody")
    printed = said[3]["error"]
    assert (sorted(printed), printed["kind"], printed["operation"], code) == (FIELDS, "permission", "listen", 1)


def test_without_the_package_an_error_of_the_core_is_a_runtime_error() -> None:
    """The workers of a tree load only the core's module, without the package."""
    code = f"""
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
loader = ExtensionFileLoader("_core", {_core.__file__!r})
core = module_from_spec(spec_from_loader("_core", loader))
loader.exec_module(core)
try:
    core.Layout([("w", "F99", [1])])
except RuntimeError as error:
    print(type(error).__name__, error)
print("thalweg" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    first, *rest = done.stdout.splitlines() or [done.stderr]
    assert re.fullmatch(r'RuntimeError tensor "w" has dtype "F99"; known are F64.*', first), done
    assert rest == ["False"]
