"""Samples the kernel's TCP senders during a run: congestion window, packets in flight, the peer's window.

``watched`` runs a plan as a bench does. Meanwhile it runs ``ss`` repeatedly on the host of ``client-1``, and sends
``rivals`` other TCP streams from there to the server. They have the host's default congestion control and a kernel's
receiver, and share the path of the client's update. The samples are written to ``NAME.senders.json`` beside the run's
log.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from thalweg.bench.driver import Execute
from thalweg.bench.process import Failure, execute
from thalweg.bench.systems import System
from thalweg.errors import LabError, ThalwegError
from thalweg.lab import state
from thalweg.lab.flood import End, Flow
from thalweg.lab.namespaces import within

SUFFIX: Final = ".senders.json"
HOST: Final = "client-1"
SERVER: Final = "server"
INTERVAL: Final = 0.02
LOOK: Final = 0.02
# A rate above that of any link here, so that only congestion control limits a rival.
UNPACED: Final = 10**9
COMMAND: Final = ("ss", "--tcp", "--info", "--numeric", "--no-header", "--oneline", "state", "established")
# Shares of all acknowledged bytes. Below the first one a connection is still being set up, above the second one it is
# closing.
BEGUN: Final = 0.005
ENDED: Final = 0.999
# Maximum number of points of a timeline. A timeline with more points is thinned out.
POINTS: Final = 400

_ENDS: Final = re.compile(r"\S+:(\d+)\s+\S+:\d+\s+(\S.*)")
_FIELDS: Final = re.compile(r"(?<!\w)(cwnd|mss|unacked|sacked|lost|snd_wnd|bytes_acked):(\d+)")
_REPEATS: Final = re.compile(r"(?<!\w)retrans:(\d+)/(\d+)")

Socket = dict[str, int]
Sample = Mapping[str, Any]


def watched(rivals: int) -> Execute:
    """Return a function like ``process.execute`` that also samples the run's senders and starts ``rivals`` streams."""

    def run(plan: Path, log: Path, limit: float | None, system: System | None) -> Failure | None:
        watch = Watch(rivals)
        watch.start()
        try:
            failure = execute(plan, log, limit, system)
        finally:
            samples = watch.stop()
        log.with_name(log.stem + SUFFIX).write_text(json.dumps(samples))
        if watch.failure is not None and failure is None:
            return Failure(f"its senders were not watched: {watch.failure}", "See why, try again")
        return failure

    return run


class Watch:
    """Samples the senders of the run that this process is running."""

    def __init__(self, rivals: int) -> None:
        """Prepare to watch the runs of plans; nothing is started yet."""
        self.failure: str | None = None
        self._rivals = rivals
        self._ports: list[int] = []
        self._samples: list[Sample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Wait for the run's lab, and sample its senders from then on."""
        self._thread.start()

    def stop(self) -> dict[str, Any]:
        """End it and return the rivals' ports and the samples."""
        self._ended.set()
        self._thread.join()
        return {"rivals": self._ports, "samples": self._samples}

    def _watch(self) -> None:
        try:
            if shutil.which(COMMAND[0]) is None:
                raise LabError(f"there is no {COMMAND[0]}", "Install iproute2")
            lab = self._lab()
            if lab is not None:
                with ExitStack() as stack:
                    for _ in range(self._rivals):
                        self._rival(lab, stack)
                    within(lab.hosts[HOST].namespace, self._sample)
        except (OSError, ValueError, ThalwegError) as error:
            self.failure = str(error)

    def _lab(self) -> state.State | None:
        """Wait for the lab whose supervisor descends from this process; return None if the run ends before."""
        while not self._ended.wait(LOOK):
            for one in state.live():
                if HOST in one.hosts and os.getpid() in ancestors(one.pid):
                    return one
        return None

    def _rival(self, lab: state.State, stack: ExitStack) -> None:
        source, target = (End(name, lab.hosts[name].namespace, lab.hosts[name].ipv4) for name in (HOST, SERVER))
        flow = Flow(source, target, UNPACED)
        stack.callback(flow.stop)
        self._ports.append(flow.port)
        flow.start()

    def _sample(self) -> None:
        while not self._ended.wait(INTERVAL):
            at = time.monotonic()
            output = subprocess.run(COMMAND, capture_output=True, text=True, check=False).stdout
            self._samples.append({"seconds": at, "sockets": parsed(output)})


def ancestors(pid: int) -> list[int]:
    """Return the ids of a process's parent, of the parent's parent, and so on."""
    ids: list[int] = []
    while pid > 1:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            break
        pid = int(fields[1])
        ids.append(pid)
    return ids


def parsed(text: str) -> dict[str, Socket]:
    """Return the numbers that ``ss`` prints for each socket, by local port: in packets, but ``snd_wnd`` in bytes."""
    sockets = {}
    for line in text.splitlines():
        ends = _ENDS.search(line)
        if ends is None:
            continue
        numbers = {name: int(value) for name, value in _FIELDS.findall(ends[2])}
        again = _REPEATS.search(ends[2])
        numbers |= {"again": int(again[1]), "repeats": int(again[2])} if again else {"again": 0, "repeats": 0}
        sockets[ends[1]] = numbers
    return sockets


def of_file(file: Path) -> dict[str, Any]:
    """Return the ``timeline`` of a run's update, and its rivals' goodput in bits a second by name.

    A timeline has lists of equal length: ``seconds`` since the update began; ``cwnd``, ``in_flight`` and the receiver's
    ``window`` in packets; and ``repeats``, the retransmissions so far. It is empty if the whole update fell between two
    samples.
    """
    content = json.loads(file.read_text())
    rivals = [str(port) for port in content["rivals"]]
    samples = while_sending(content["samples"], rivals)
    if len(samples) < 2:
        return {"timeline": None, "rivals": {}}
    began, seconds = samples[0][0], samples[-1][0] - samples[0][0]
    first, last = samples[0][2], samples[-1][2]
    rates = {
        f"rival {number}": 8 * (last[port].get("bytes_acked", 0) - first[port].get("bytes_acked", 0)) / seconds
        for number, port in enumerate(rivals, 1)
        if port in first and port in last
    }
    return {"timeline": timeline([(at - began, one) for at, one, _ in samples]), "rivals": rates}


def while_sending(samples: Iterable[Sample], rivals: Sequence[str]) -> list[tuple[float, Socket, dict[str, Socket]]]:
    """Return samples (time, the update's socket, all sockets) from before the update's first byte to after its last."""
    samples = list(samples)
    acked: dict[str, int] = {}
    for sample in samples:
        for port, one in sample["sockets"].items():
            if port not in rivals:
                acked[port] = max(acked.get(port, 0), one.get("bytes_acked", 0))
    if not acked:
        return []
    chosen = max(acked, key=lambda port: acked[port])
    rows = [(s["seconds"], s["sockets"][chosen], s["sockets"]) for s in samples if chosen in s["sockets"]]
    done = [row[1].get("bytes_acked", 0) for row in rows]
    first, last = (
        next((at for at, count in enumerate(done) if count >= share * acked[chosen]), 0) for share in (BEGUN, ENDED)
    )
    return rows[max(0, first - 1) : last + 1]


def timeline(rows: Sequence[tuple[float, Socket]]) -> dict[str, list[float]]:
    """Return the lists of a timeline. ``in_flight`` is computed like the kernel's tcp_packets_in_flight()."""
    rows = rows[:: -(-len(rows) // POINTS)]
    flying = [one.get("unacked", 0) - one.get("sacked", 0) - one.get("lost", 0) + one["again"] for _, one in rows]
    return {
        "seconds": [round(at, 3) for at, _ in rows],
        "cwnd": [one.get("cwnd", 0) for _, one in rows],
        "in_flight": [max(0, count) for count in flying],
        "window": [round(one.get("snd_wnd", 0) / one.get("mss", 1448), 1) for _, one in rows],
        "repeats": [one["repeats"] for _, one in rows],
    }
