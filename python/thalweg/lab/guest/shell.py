"""An interactive shell inside the guest, to look around."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from thalweg.errors import LabError
from thalweg.lab import guest


def shell(program: str) -> int:
    """Open a shell inside the guest on this terminal, in real time; return its exit code.

    Raises LabError if there is no guest kernel, or if the guest fails.
    """
    kernel = guest.kernel()
    with tempfile.TemporaryDirectory(prefix="thalweg-guest-") as name:
        folder = Path(name)
        # The shell gets a controlling terminal, so that Ctrl-C interrupts programs inside and not the guest.
        there = f"setsid -cw {shlex.quote(program)} </dev/tty0 >/dev/tty0 2>&1"
        (folder / "job").write_text(guest.script(["bash", "-c", there], ()))
        before = termios.tcgetattr(sys.stdin)
        process = subprocess.Popen(guest.boot(kernel, folder, clock="real"))
        try:
            process.wait()
        finally:
            guest.end(process)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)  # the kernel leaves it raw
        code = folder / "code"
        if not code.is_file() or not code.read_text().strip():
            raise LabError("the guest ended before its shell", "Run `thalweg lab guest status`, or try again")
        return int(code.read_text())
