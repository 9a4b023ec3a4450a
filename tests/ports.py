"""Free ports for programs that need their port as an argument."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from typing import Final

# The kernel's range of ephemeral ports (ip(7)).
GIVEN: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST: Final = 10_000


def free_ports(count: int) -> list[int]:
    """Return free ports of this machine.

    They are below those that the system gives away, so no connection of another program has one of them meanwhile.
    """
    first = int(GIVEN.read_text().split()[0]) if GIVEN.exists() else 32_768
    below = range(LOWEST, max(first, LOWEST + 1_000))
    ports: list[int] = []
    for port in random.Random(os.getpid() ^ id(ports)).sample(below, len(below)):
        if len(ports) == count:
            break
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue  # another program listens at this port
        ports.append(port)
    assert len(ports) == count, "hardly any port is free"
    return ports
