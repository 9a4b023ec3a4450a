"""Measures the peak memory of a server, which should not depend on the number of its clients."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

from benches.common import FOLDER, MIB, Figure, note

BASE = 150e6  # bytes besides updates: Python, libraries, buffers of links


def peak(size: int, clients: int, partial: str) -> int:
    """Run a job by ``thalweg run`` and return the peak resident bytes of its server."""
    with tempfile.TemporaryDirectory() as records:
        command = [sys.executable, "-m", "thalweg", "run", "--model", f"payload:{size // MIB}MiB", "--rounds", "2"]
        command += ["--transport", "tcp"]
        command += ["--clients", str(clients), "--partial", partial, "--record", records, "--json"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=FOLDER)
    bytes_used: int = json.loads(done.stdout)["peak_rss_bytes"]["server"]
    return bytes_used


def server_memory(size: int) -> list[Figure]:
    """Measure 4 and 16 clients, with both settings for partial updates."""
    figures = []
    for partial, updates in (("keep", 2.5), ("discard", 4.5)):
        for clients in (4, 16):
            name = f"server's peak memory, payload:{size // MIB}MiB, {clients} clients, {partial}"
            note(name)
            used, limit = peak(size, clients, partial), updates * size + BASE
            value = f"{used / 1e6:.0f} MB = {(used - BASE) / size:.2f} updates + 150 MB"
            figures.append(Figure(name, value, f"{updates} updates + 150 MB", used < limit, {"bytes": used}))
    return figures
