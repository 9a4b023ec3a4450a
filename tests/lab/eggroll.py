"""FATE's message pattern through ``thalweg forward`` over rdma: run by test_guest_forward.py inside the guest kernel.

FATE's eggroll sends an update as a series of gRPC calls of 1 MB, each after the answer to the one before (FedRDMA,
section 4.1). The near end answers them itself. Prints one line of JSON: whether the server has the calls' bytes in
order, the near end's event as the connection ended, and how many packets the RDMA device sent.
"""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

grpc: Any = importlib.import_module("grpc")  # it has no types
HOST: Final = sys.argv[1]
#: A counter of the kernel's driver rxe.
SENT_PACKETS: Final = Path("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts")
MESSAGE: Final = 1_000_000
CALLS: Final = 12
METHOD: Final = "/eggroll.Transfer/push"
UNLIMITED: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def message(number: int) -> bytes:
    """Return the bytes of one call, which differ from those of each other call."""
    return number.to_bytes(4, "big") * (MESSAGE // 4)


def thalweg(*arguments: str) -> None:
    """Run a command of thalweg, which must succeed."""
    subprocess.run([sys.executable, "-m", "thalweg", *arguments], stdout=subprocess.DEVNULL, check=True)


class End:
    """One end of ``thalweg forward``."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "thalweg", "forward", *arguments, "--grpc", "--window", "4MiB", "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.events: list[dict[str, Any]] = []

    def until(self, kind: str) -> dict[str, Any]:
        """Return the next event of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == kind:
                return self.events[-1]
        raise RuntimeError(f"an end stopped without the event {kind}: {self.events}")

    def stop(self) -> None:
        """End it, and keep what it still says."""
        self.process.send_signal(signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=600)
        self.events += map(json.loads, rest.splitlines())


def main() -> None:
    """Send the calls, wait until the server has all of them, and print what happened."""
    received: list[bytes] = []

    def push(request: bytes, _context: object) -> bytes:
        received.append(request)
        return b""

    server = grpc.server(ThreadPoolExecutor(1), options=UNLIMITED)
    handler = grpc.unary_unary_rpc_method_handler(push)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("eggroll.Transfer", {"push": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    thalweg("pki", "init", "--host", HOST)
    thalweg("pki", "issue", "site", "--role", "forward")
    fabric = ("--option", "trust=fabric")  # RDMA encrypts nothing, so both ends say that they trust the network
    far = End("--listen", f"rdma://{HOST}:0", "--to", f"127.0.0.1:{port}", "--pki", "pki", *fabric)
    via = ("--via", far.until("listening")["listen"], "--token-file", "pki/site.token", *fabric)
    near = End("--listen", "127.0.0.1:0", *via, "--answer", METHOD)
    with grpc.insecure_channel(near.until("listening")["listen"], options=UNLIMITED) as channel:
        call = channel.unary_unary(METHOD)
        for number in range(CALLS):
            call(message(number))
    ended = near.until("end")
    for end in (near, far):
        end.stop()
    server.stop(None).wait(600)
    packets = int(SENT_PACKETS.read_text())
    whole = received == [message(number) for number in range(CALLS)]
    sys.stdout.write(json.dumps({"whole": whole, "ended": ended, "packets": packets}))


if __name__ == "__main__":
    main()
