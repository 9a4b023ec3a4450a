"""The contract between the driver and the script of a system. This module needs only NumPy.

The driver starts ``party.py FOLDER INDEX`` once for each party. Party 0 is the server, or the root of a tree; the
others are clients 1 to n. FOLDER has the file ``job.json``. A party writes a line to ``INDEX.jsonl`` after each round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 1 << 20


@dataclass(frozen=True)
class Job:
    """One job: the work, its size, and where the parties are."""

    folder: Path
    index: int
    work: str  # "star", "allreduce" or "tree"
    clients: int
    size: int  # bytes of the model, float32
    rounds: int
    addresses: tuple[str, ...]  # IPv4 of each party, the server's first
    device: str  # the network device of each party
    options: Mapping[str, Any]  # the system's options in the registry, such as a tuned setting
    port: int = 7000

    @property
    def parties(self) -> int:
        return len(self.addresses)

    @property
    def server(self) -> str:
        """The server's host and port."""
        return f"{self.addresses[0]}:{self.port}"

    def model(self, number: int) -> np.ndarray:
        """Return the model of a round: each value is the round's number."""
        return np.full(self.size // 4, number, np.float32)

    def ready(self) -> None:
        """Say that this party accepts connections. The driver starts the clients when the server is ready."""
        (self.folder / f"{self.index}.ready").touch()

    def done(self, number: int, begin: float, end: float, result: np.ndarray) -> None:
        """Report a round: when it began and ended, by ``time.perf_counter()``, and its result.

        The first round does not count. After the first and after the last round the server waits here until the driver
        has read the counters of the network and of all parties.
        """
        value = float(result[0])
        same = all((result[at : at + BLOCK] == result[0]).all() for at in range(0, len(result), BLOCK))
        whole = len(result) == self.size // 4
        line = {"round": number, "begin": begin, "end": end, "value": value if same and whole else None}
        with (self.folder / f"{self.index}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if self.index == 0:
            for last, word in ((1, "first"), (self.rounds, "last")):
                if number == last:
                    wait_for(self.folder / word)

    def barrier(self, number: int) -> None:
        """Wait until all parties are about to begin a round. Files do this, so nothing crosses the network."""
        (self.folder / f"{self.index}.barrier-{number}").touch()
        for index in range(self.parties):
            wait_for(self.folder / f"{index}.barrier-{number}", 0.001)


def train(array: np.ndarray, index: int) -> None:
    """Do the work of a client: add its index to each value, in place."""
    array += np.float32(index)


def wait_for(path: Path, pause: float = 0.005) -> None:
    """Wait until a file exists. Check every ``pause`` seconds."""
    while not path.exists():
        time.sleep(pause)


def job() -> Job:
    """Return the job of this process, from its command line."""
    folder, index = Path(sys.argv[1]), int(sys.argv[2])
    table = json.loads((folder / "job.json").read_text())
    return Job(folder=folder, index=index, **{**table, "addresses": tuple(table["addresses"])})
