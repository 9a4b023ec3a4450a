"""A private broker: it starts with files of its own, is started again when it dies, and ends with its run."""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from thalweg.brokers import Broker, BrokerPlace, Launch, Login, Sign, Site
from thalweg.brokers.base import MOST_RESTARTS
from thalweg.errors import BrokerError

WAIT_SECONDS = 300.0
# A program that plays a broker: it takes connections, and starts a child in a session of its own.
PLAYED = """
import socket, subprocess, sys
port = int(sys.argv[1])
listener = socket.create_server(("127.0.0.1", port))
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("running", child.pid, flush=True)
print("alarm of memory", flush=True)
while True:
    listener.accept()
"""


class Played:
    """A fake broker program, which runs the script above."""

    name = "played"

    def __init__(self, text: str = PLAYED) -> None:
        self.text = text
        self.sites: list[Site] = []
        self.children: list[int] = []

    def find(self) -> str | None:
        return sys.executable

    def version(self) -> str | None:
        return "1"

    def launch(self, site: Site) -> Launch:
        self.sites.append(site)
        site.login.write(site.folder / "login")
        return Launch([sys.executable, "-c", self.text, str(site.port)])

    def read(self, line: str) -> Sign | None:
        if line.startswith("running"):
            self.children.append(int(line.split()[1]))
            return Sign("ready")
        if "alarm" in line:
            return Sign("event", line)
        return Sign("port taken") if "Address already in use" in line else None


class Absent(Played):
    """A broker program that is not installed."""

    def find(self) -> str | None:
        return None


@pytest.fixture
def heard() -> Heard:
    return Heard()


class Heard:
    """Stores the events of a broker, and waits for one."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, text: str) -> None:
        with self._changed:
            self.texts.append(text)
            self._changed.notify_all()

    def wait(self, words: str, times: int = 1) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: sum(words in text for text in self.texts) >= times, WAIT_SECONDS)
        assert done, self.texts


def wait_end(pid: int) -> None:
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([watch], [], [], WAIT_SECONDS)[0], f"{pid} goes on"
    os.close(watch)


def test_it_starts_with_files_nobody_else_reads_and_leaves_nothing(heard: Heard) -> None:
    program = Played()
    with Broker(program, BrokerPlace(), on_event=heard) as broker:
        (site,) = program.sites
        assert stat.S_IMODE(site.folder.stat().st_mode) == 0o700
        login = site.folder / "login"
        assert stat.S_IMODE(login.stat().st_mode) == 0o600
        assert login.read_text() == f"{site.login.user}:{site.login.password}\n"
        assert site.login.password not in repr(site)
        socket.create_connection(("127.0.0.1", broker.port)).close()
        heard.wait("alarm of memory")
        used = broker.usage()
        assert used.peak_rss_bytes is not None
        assert used.peak_rss_bytes > 1 << 20
        assert used.cpu_seconds is not None
        assert used.cpu_seconds >= 0
        pid = broker.pid
    for ended in (pid, *program.children):
        wait_end(ended)
    assert not site.folder.exists()
    assert [event.what for event in broker.facts().events] == ["alarm of memory"]


def test_one_that_dies_is_started_again_at_its_port(heard: Heard) -> None:
    program = Played()
    with Broker(program, BrokerPlace(), on_event=heard) as broker:
        port = broker.port
        os.kill(broker.pid, signal.SIGKILL)
        heard.wait("was killed by signal 9")
        heard.wait("was started again")
        assert broker.port == port
        assert program.sites[0].login == program.sites[1].login
        socket.create_connection(("127.0.0.1", port)).close()
        wait_end(program.children[0])
    assert not any(site.folder.exists() for site in program.sites)


def test_it_is_not_started_again_for_ever(heard: Heard) -> None:
    program = Played()
    with Broker(program, BrokerPlace(), on_event=heard) as broker:
        for number in range(1, MOST_RESTARTS + 2):
            os.kill(broker.pid, signal.SIGKILL)
            heard.wait("was killed by signal 9", number)
            if number <= MOST_RESTARTS:
                heard.wait("was started again", number)
        heard.wait("is not started again")


def test_one_that_never_is_ready_is_quoted() -> None:
    program = Played("import sys; sys.exit('no such thing')")
    with pytest.raises(BrokerError, match="played did not start: no such thing"):
        Broker(program, BrokerPlace())
    assert not any(site.folder.exists() for site in program.sites)


def test_a_port_that_was_taken_meanwhile_is_another_one_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        real, given = BrokerPlace.free_port, [other.getsockname()[1]]
        monkeypatch.setattr(BrokerPlace, "free_port", lambda place: given.pop() if given else real(place))
        with Broker(Played(), BrokerPlace()) as broker:
            assert broker.port != other.getsockname()[1]


def test_a_missing_broker_program_is_named() -> None:
    with pytest.raises(BrokerError, match="played is not installed"):
        Broker(Absent(), BrokerPlace())


def test_a_login_is_never_printed() -> None:
    login = Login.make()
    assert login.password not in repr(login)
    assert login != Login.make()


def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "import signal, sys\n"
        "from tests.brokers.test_broker import Played\n"
        "from thalweg.brokers import Broker, BrokerPlace\n"
        "program = Played()\n"
        "broker = Broker(program, BrokerPlace())\n"
        "print(broker.pid, program.children[0], broker.folder, flush=True)\n"
        "signal.pause()\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    with run.stdout as said:
        pid, child, folder = said.readline().split()
        supervisor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        run.kill()
        run.wait()
    for process in (int(pid), int(child), supervisor):
        wait_end(process)
    assert not Path(folder).exists()
