"""Measures what exchanges of DiLoCo cost beside other programs: bytes, waiting, and what killed peers change.

python -m benches.diloco.live OUT WAY... [--turns N] [--steps N] [--every H] [--compute SECONDS] [--kill one|each]

There are four peers, each in a network namespace of its own behind a link of 50 Mbit/s, with a round trip of 80 ms
between any two. The ways take turns. Bytes are those that the emulated links carried, from the first step to the last.
It needs root, and for torchft and hivemind the environment of ``python -m benches systems --install torch``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from benches.systems import environments
from thalweg import _core
from thalweg.lab.namespaces import within
from thalweg.network.spec import build
from thalweg.sections.network import NetworkSection

PROGRAM = Path(__file__).with_name("program.py")
NAMES = [f"node-{one}" for one in range(1, 5)]
PORT = 29500
LIMIT = 150.0
# Each way: the program (``program.WAYS``), and the settings that differ from the common ones.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "alone": ("alone", {}),
    "thalweg": ("thalweg", {}),
    "thalweg-f16": ("thalweg", {"compress": "f16"}),
    "thalweg-int8": ("thalweg", {"compress": "int8"}),
    "thalweg-int8-28": ("thalweg", {"compress": "int8", "every": 28, "overlap": 3}),
    "thalweg-whole": ("thalweg", {"fragments": 1, "overlap": 0}),
    "thalweg-each-step": ("thalweg", {"every": 1, "fragments": 1, "overlap": 0}),
    "gloo": ("gloo", {"fragments": 1, "overlap": 0}),
    "gloo-each-step": ("gloo", {"every": 1, "fragments": 1, "overlap": 0}),
    "torchft": ("torchft", {}),
    "torchft-buckets": ("torchft", {"buckets": True}),
    "hivemind": ("hivemind", {"fragments": 1}),
}


class Child:
    """A peer's process, and the lines that it prints."""

    def __init__(self, net: Net, way: str, name: str, table: dict[str, Any], scratch: Path) -> None:
        program, _ = WAYS[way]
        python = environments.python("torch") if program in ("torchft", "hivemind") else Path(sys.executable)
        words = [str(python), str(PROGRAM), program, json.dumps({**table, "name": name, "peers": net.ips})]
        keys = {"CA": "ca.crt", "CERT": f"{name}.crt", "KEY": f"{name}.key"}
        extra = {key: str(scratch / "pki" / file) for key, file in keys.items()}
        environment = {**os.environ, **extra, "GLOO_SOCKET_IFNAME": "eth0", "SCRATCH": str(scratch)}
        self.name, self.steps, self.result = name, 0, None
        self._log = (scratch / f"{name}.log").open("ab")
        self.process = net.start(name, words, environment, self._log)
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word = line.strip()
            if word.startswith("step "):
                self.steps = int(word.removeprefix("step "))
            else:
                self._lines.put(word)
        self._lines.put("")

    def wait_for(self, start: str) -> str:
        """Return the next line that begins with ``start``. Raises RuntimeError if the process ends or is too slow."""
        ends = time.monotonic() + LIMIT
        while True:
            try:
                line = self._lines.get(timeout=max(0.1, ends - time.monotonic()))
            except Empty:
                raise RuntimeError(f"{self.name} does not print {start!r} in time") from None
            if line.startswith(start):
                return line
            if not line:
                raise RuntimeError(f"{self.name} has ended before it printed {start!r}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()


class Net:
    """Four hosts around a switch."""

    def __init__(self) -> None:
        links = NetworkSection.model_validate({"rate": "50mbit", "rtt": "40ms"})  # a path has two links, so 80 ms
        self._core = _core.Lab(build(["server", *NAMES], links, peers=True).text())
        self._hosts = json.loads(self._core.hosts())
        self.ips = {name: self._hosts[name]["ipv4"] for name in NAMES}
        self._core.start()

    def start(self, host: str, words: list[str], environment: dict[str, str], log: Any) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return within(
            self._hosts[host]["namespace"],
            lambda: subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment),
        )

    def bytes(self) -> int:
        """Return the bytes that peers have sent so far, headers included."""
        links = json.loads(self._core.status())["links"]
        return sum(one["bytes_in"] for one in links if one["source"] in NAMES)

    def close(self) -> None:
        self._core.close()


def certificates(scratch: Path) -> None:
    """Issue a certificate for each peer, because links to other addresses than this machine's are encrypted."""
    ca, key = _core.pki_authority("benches", 30)
    folder = scratch / "pki"
    folder.mkdir()
    (folder / "ca.crt").write_text(ca)
    net_ips = [f"10.77.0.{one}" for one in range(1, 7)]
    for name in NAMES:
        cert, own = _core.pki_issue(ca, key, name, net_ips, 30, "graph-node")
        (folder / f"{name}.crt").write_text(cert)
        (folder / f"{name}.key").write_text(own)
        (folder / f"{name}.key").chmod(0o600)


def measured(way: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run one way once; return its figures."""
    program, differs = WAYS[way]
    common = {"steps": chosen.steps, "every": chosen.every, "fragments": chosen.fragments, "overlap": chosen.overlap}
    table = {**common, "compute": chosen.compute, "compress": None, "buckets": False, "port": PORT, **differs}
    with tempfile.TemporaryDirectory(prefix="diloco-") as folder:
        scratch = Path(folder)
        certificates(scratch)
        net = Net()
        children: list[Child] = []
        helper: subprocess.Popen[str] | None = None
        try:
            if program == "torchft":
                helper = lighthouse(net, scratch)
            children = [Child(net, way, name, table, scratch) for name in NAMES]
            spares = [Child(net, way, NAMES[-1 - one % 2], table, scratch) for one in range(kills(chosen, table))]
            children += spares
            for child in children:
                child.wait_for("loaded")
            return run(way, net, children[: len(NAMES)], spares, table=table, chosen=chosen)
        except RuntimeError as error:
            logs = {name: (scratch / f"{name}.log").read_text(errors="replace")[-1500:] for name in NAMES}
            return {"way": way, "failed": str(error), "logs": logs, "settings": {**table, "kill": chosen.kill}}
        finally:
            for child in children:
                child.end()
            if helper is not None:
                helper.kill()
                helper.wait()
            net.close()


def kills(chosen: argparse.Namespace, table: dict[str, Any]) -> int:
    """Return how many peers are killed and replaced: with ``--kill each``, one in each period but the last."""
    return table["steps"] // chosen.every - 1 if chosen.kill == "each" else 0


def lighthouse(net: Net, scratch: Path) -> subprocess.Popen[str]:
    """Start torchft's lighthouse beside the first peer."""
    program = environments.python("torch").with_name("torchft_lighthouse")
    words = [str(program), "--min_replicas", "1", "--bind", f"0.0.0.0:{PORT}"]
    words += ["--join_timeout_ms", "1000", "--quorum_tick_ms", "50"]
    with (scratch / "lighthouse.log").open("ab") as log:
        return net.start(NAMES[0], words, dict(os.environ), log)


def run(
    way: str, net: Net, peers: list[Child], spares: list[Child], *, table: dict[str, Any], chosen: argparse.Namespace
) -> dict[str, Any]:
    """Let the peers join and take their steps, and kill and replace some meanwhile; return the figures."""
    for child in peers:
        child.go_on()
    for child in peers:
        child.wait_for("ready")
    before, load = net.bytes(), os.getloadavg()[0]
    began = time.monotonic()
    for child in peers:
        child.go_on()
    gone: list[Child] = []
    if chosen.kill == "one":
        _until(peers[-1], table["steps"] // 2 + 1)
        peers[-1].kill()
        gone.append(peers.pop())
    for number, spare in enumerate(spares, 1):
        # Three steps after an exchange has begun, kill the peer with the newcomer's name. The newcomer joins at once.
        victim = next(one for one in peers if one.name == spare.name)
        _until(peers[0], number * chosen.every + 3)
        victim.kill()
        gone.append(victim)
        peers.remove(victim)
        spare.go_on()
        spare.wait_for("ready")
        spare.go_on()
        peers.append(spare)
    first = [child for child in peers if child not in spares]
    results = [json.loads(child.wait_for("{")) for child in first]
    wall = time.monotonic() - began
    sent = net.bytes() - before
    steps = sum(child.steps for child in [*peers, *gone])
    longest = [max(result["waits"]) for result in results]
    for child in peers:
        child.go_on()
    return {
        "way": way,
        "wall": wall,
        "steps": steps,
        "load": load,
        "bytes": sent,
        "bytes_a_step": sent / steps,
        # The share of time computing, of the peers that took all steps, and of all four places, also empty ones.
        "computing": sum(table["steps"] * table["compute"] / one["wall"] for one in results) / len(results),
        "computing_of_all": steps * table["compute"] / (wall * len(NAMES)),
        "longest_wait": max(longest),
        "waited_a_period": sum(sum(one["waits"]) for one in results) / len(results) / (table["steps"] / chosen.every),
        "settings": {**table, "kill": chosen.kill},
    }


def _until(child: Child, step: int) -> None:
    ends = time.monotonic() + LIMIT
    while child.steps < step:
        if time.monotonic() > ends or child.process.poll() is not None:
            raise RuntimeError(f"{child.name} does not reach step {step}")
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("ways", nargs="+", choices=list(WAYS))
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--overlap", type=int, default=10)
    parser.add_argument("--compute", type=float, default=0.1)
    parser.add_argument("--kill", choices=["none", "one", "each"], default="none")
    chosen = parser.parse_args()
    for _ in range(chosen.turns):
        for way in chosen.ways:
            found = measured(way, chosen)
            with chosen.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
            sys.stdout.write(json.dumps({key: value for key, value in found.items() if key != "settings"}) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
