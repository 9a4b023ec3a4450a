"""Submits the Flower app to the SuperLink on this host by `flwr run APP edge --stream`.

A SuperLink listens for a while before it answers. `flwr run` then ends with an error, and is called again.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

SECONDS: Final = 180.0
UNAVAILABLE: Final = "Connection to the SuperLink is unavailable"


def main() -> int:
    """Submit the app; return the exit code of `flwr run`."""
    flwr = str(Path(sys.executable).parent / "flwr")
    until = time.monotonic() + SECONDS
    while True:
        command = [flwr, "run", sys.argv[1], "edge", "--stream", *sys.argv[2:]]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(done.stdout, flush=True)
        if UNAVAILABLE not in done.stdout or time.monotonic() > until:
            return done.returncode
        time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
