"""Runs an honest job while an adversary attacks it, and returns the result."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from thalweg import _core
from thalweg.brokers import Broker, BrokerPlace, programs

ROOT: Final = Path(__file__).parents[2]
# Maximum memory in bytes that peers without a token may cost the server (docs/explanation/security.md).
MEMORY: Final = 128 << 20
# Rounds before the attack, in which memory and pace are measured for comparison.
CALM: Final = 20
END_SECONDS: Final = 60.0
HOST: Final = "127.0.0.1"


def transports() -> list[str]:
    """Return the names of this build's transports, without those inside one process: no stranger can connect there."""
    return [entry["name"] for entry in json.loads(_core.transports()) if entry["name"] != "memory"]


@dataclass
class Account:
    """The result of a job: facts about each round, and the counts of the peers' actions."""

    transport: str
    calm: list[Mapping[str, Any]] = field(default_factory=list)
    attacked: list[Mapping[str, Any]] = field(default_factory=list)
    peers: Mapping[str, int] = field(default_factory=dict)

    @property
    def rounds(self) -> list[Mapping[str, Any]]:
        return self.calm + self.attacked

    @property
    def growth(self) -> int:
        """The maximum number of bytes of memory that the attack cost."""
        before = max(int(fact["rss"]) for fact in self.calm)
        return max(int(fact["rss"]) for fact in self.attacked) - before

    @property
    def slower(self) -> float:
        """How many times as long a round took as before the attack."""

        def usual(facts: list[Mapping[str, Any]]) -> float:
            return float(statistics.median(fact["seconds"] for fact in facts))

        return usual(self.attacked) / usual(self.calm)

    def line(self) -> str:
        """Return the result as one line of text."""
        peers = sum(count for name, count in self.peers.items() if name not in ("ended", "cut off", "not let in"))
        return (
            f"{self.transport}: {len(self.attacked)} rounds beside {peers} hostile peers, all exact; "
            f"{self.slower:.2f} times as long as without, {self.growth / 2**20:+.0f} MiB, "
            f"{self.attacked[-1]['notes']} notes"
        )


class Process:
    """A module of this folder in a process of its own; it ends when its standard input does."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tests.hostile.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def go(self) -> None:
        """Send the process a line, which makes it continue."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def next(self) -> dict[str, Any]:
        """Return its next line, parsed."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args!r} has ended with {self.process.wait(END_SECONDS)}"
        said: dict[str, Any] = json.loads(line)
        return said

    def end(self) -> list[dict[str, Any]]:
        """End the process, and return its remaining output."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        said = [json.loads(line) for line in self.process.stdout]
        code = self.process.wait(END_SECONDS)
        assert code == 0, f"{self.process.args!r} ended with {code}"
        return said

    def kill(self) -> None:
        """Kill the process if it still runs, and close its pipes."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):  # output that is still buffered has no reader any more
                    pipe.close()


@contextmanager
def running(module: str, *arguments: str) -> Iterator[Process]:
    """Run a module as a process, and end it in any case."""
    process = Process(module, *arguments)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def place(transport: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the URL to listen at and the transport's options. A broker, if there is one, runs as long as the block."""
    with ExitStack() as stack:
        brokers = [program for program in programs(transport) if program.find() is not None]
        if not programs(transport):
            yield f"{transport}://{HOST}:0", {}
            return
        broker = stack.enter_context(Broker(brokers[0], BrokerPlace(HOST)))
        login = {"user": broker.login.user, "password": broker.login.password}
        yield f"{transport}://{HOST}:{broker.port}/hostile", {"login": login}


def missing(transport: str) -> str:
    """Return what this machine lacks to try a transport; "" if it lacks nothing."""
    needed = programs(transport)
    if needed and not any(program.find() for program in needed):
        return f"{transport} needs a broker: {' or '.join(program.name for program in needed)} is not installed"
    return ""


def storm(transport: str, seed: int, more: Callable[[int, float], bool]) -> Account:
    """Run a job that is attacked after some calm rounds, as long as ``more(rounds, seconds)`` is true."""
    account = Account(transport)
    with place(transport) as (url, options), running("job", url, json.dumps(options)) as job:
        address = job.next()["address"]
        job.go()
        account.calm = [job.next() for _ in range(CALM)]
        with running("adversary", address, str(seed)) as adversary:
            began = time.monotonic()
            while more(len(account.attacked), time.monotonic() - began):
                account.attacked.append(job.next())
            # Read the job's output meanwhile, so that its pipe does not fill up.
            ended: list[dict[str, Any]] = []
            ending = threading.Thread(target=lambda: ended.extend(adversary.end()))
            ending.start()
            while ending.is_alive():
                account.attacked.append(job.next())
            ending.join()
            account.peers = ended[-1]
        account.attacked.extend(fact for fact in job.end() if "round" in fact)
    return account
