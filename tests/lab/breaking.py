"""Runs a job inside the guest and injects a fault: ``python breaking.py FAULT PLAN``. Prints the job's JSON.

It reads from /proc how much the hosts have sent, and changes hosts with iproute2 in their namespaces, at virtual times.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from thalweg.lab import state as states
from thalweg.lab.values import Host

LOOK: Final = 0.001
UPDATE: Final = 4 << 20
#: Bytes that a client has sent in the middle of its second update.
MIDDLE: Final = UPDATE * 3 // 2
LOCKED: Final = 1 << 20
RDMA: Final = "match ip protocol 17 0xff match ip dport 4791 0xffff"
#: Options of tc: packets of 4096 to 8191 bytes.
LONG: Final = "match u16 0x1000 0xf000 at 2"
CLIENT: Final = "client-1"
DEVICES: Final = Path("/sys/class/infiniband")


def start(plan: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "thalweg", "run", plan, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def hosts() -> Mapping[str, Host]:
    """Wait until the job's lab runs, and return its hosts. The job's parties are not connected yet."""
    while not (labs := states.live()):
        time.sleep(LOOK)
    return labs[0].hosts


def within(host: Host, *command: str) -> str:
    entered = ["nsenter", f"--net={host.namespace}", *command]
    return subprocess.run(entered, capture_output=True, text=True, check=True).stdout


def process_in(host: Host) -> int:
    """Wait until there is a process in a host's namespace, and return its id."""
    while True:
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it may have ended
                if (folder / "ns/net").stat().st_ino == host.inode:
                    return int(folder.name)
        time.sleep(LOOK)


def sent(pid: int, device: str) -> int:
    """Return how many bytes the host of a process has sent."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == device:
            return int(counts.split()[8])
    raise LookupError(device)


def until_middle(host: Host) -> int:
    """Wait until a host is in the middle of its second update; return its process."""
    pid = process_in(host)
    while sent(pid, host.device) < MIDDLE:
        time.sleep(LOOK)
    return pid


def filtered(host: Host, what: str) -> None:
    """Make a host drop incoming packets."""
    within(host, "tc", "qdisc", "add", "dev", host.device, "ingress")
    action = f"tc filter add dev {host.device} parent ffff: protocol ip u32 {what} action drop"
    within(host, *action.split())


def unfiltered(host: Host) -> None:
    within(host, "tc", "qdisc", "del", "dev", host.device, "ingress")


def flap(host: Host, seconds: float) -> None:
    """Take a host's device down for a while, then restore its neighbour table: the lab answers no ARP requests."""
    device = host.device
    neighbours = [line.split() for line in within(host, "ip", "-4", "neigh", "show", "dev", device).splitlines()]
    within(host, "ip", "link", "set", device, "down")
    time.sleep(seconds)
    within(host, "ip", "link", "set", device, "up")
    for ip, _, address, *_ in neighbours:
        within(host, "ip", "neigh", "replace", ip, "lladdr", address, "nud", "permanent", "dev", device)


def interrupted(there: Mapping[str, Host], seconds: float) -> None:
    """Drop all of the server's incoming RDMA packets for a while, in the middle of an update."""
    until_middle(there[CLIENT])
    filtered(there["server"], RDMA)
    time.sleep(seconds)
    unfiltered(there["server"])


def killed(there: Mapping[str, Host]) -> None:
    os.kill(until_middle(there[CLIENT]), signal.SIGKILL)


def shorter(there: Mapping[str, Host]) -> None:
    within(there[CLIENT], "ip", "link", "set", there[CLIENT].device, "mtu", "1500")


def flapped(there: Mapping[str, Host], seconds: float) -> None:
    until_middle(there[CLIENT])
    flap(there[CLIENT], seconds)


FAULTS: Final[Mapping[str, Callable[[Mapping[str, Host]], None]]] = {
    "none": lambda _: None,
    "client killed": killed,
    "pair broken": lambda there: interrupted(there, 3),
    "port flap": lambda there: flapped(there, 0.3),
    "long port flap": lambda there: flapped(there, 3),
    "port filtered": lambda there: filtered(there["server"], RDMA),
    "port filtered at the client": lambda there: filtered(there[CLIENT], RDMA),
    "long packets filtered": lambda there: filtered(there["server"], f"{RDMA} {LONG}"),
    "shorter packets": shorter,
}


def server_killed(plan: str) -> Any:
    """Kill the server in the middle of an update. Then no client outlives it, and the next job can use the devices."""
    job = start(plan)
    there = hosts()
    until_middle(there[CLIENT])
    clients = [process_in(host) for name, host in there.items() if name != "server"]
    job.kill()
    job.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in clients) or any(DEVICES.iterdir()):
        time.sleep(LOOK)
    return json.loads(start(plan).communicate()[0])


def main() -> None:
    fault, plan = sys.argv[1:]
    if fault == "server killed":
        sys.stdout.write(json.dumps(server_killed(plan)))
        return
    if fault == "little may be locked":
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (LOCKED, LOCKED))
        fault = "none"
    job = start(plan)
    there = hosts()
    FAULTS[fault](there)
    sys.stdout.write(job.communicate()[0])


if __name__ == "__main__":
    main()
