"""Facts about the machine and this installation, mostly from /proc."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

PACKAGES: Final = ("numpy", "pyarrow", "pydantic", "safetensors", "torch", "torchvision")
SECRET_OPTIONS: Final = ("token", "secret", "password", "key")
_TCP: Final = Path("/proc/sys/net/ipv4")
_CORE: Final = Path("/proc/sys/net/core")
_COMMAND_LINE: Final = Path("/proc/cmdline")


def read_text(path: Path) -> str | None:
    """Return the text of a system file, or None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_rss_bytes(pid: int | None = None) -> int | None:
    """Return the peak resident memory of a running process, or None if the system does not report it."""
    status = read_text(Path(f"/proc/{pid or 'self'}/status")) or ""
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    return None if line is None else int(line.split()[1]) * 1024


@cache
def has_virtual_time() -> bool:
    """Return whether time stands still here while a process computes, as in the guest kernel of ``--clock virtual``."""
    return "time-travel=inf-cpu" in (read_text(_COMMAND_LINE) or "").split()


def cpu_seconds(since: float | None = 0.0) -> float | None:
    """Return the CPU time of this process, in user space and in the kernel, all threads together.

    The count starts at the time at which this function returned ``since``. Returns None in virtual time, where CPU time
    has no meaning.
    """
    if since is None or has_virtual_time():
        return None
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime - since


@dataclass(frozen=True)
class Usage:
    """What a process used: CPU time, and its peak resident memory. None means unknown."""

    cpu_seconds: float | None = None
    peak_rss_bytes: int | None = None


def usage(since: float | None = 0.0) -> Usage:
    """Return what this process used; ``since`` as in ``cpu_seconds``."""
    return Usage(cpu_seconds(since), peak_rss_bytes())


def memory_bytes() -> dict[str, int]:
    """Return the machine's ``total`` and ``available`` memory."""
    lines = (read_text(Path("/proc/meminfo")) or "").splitlines()
    table = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    names = {"total": "MemTotal", "available": "MemAvailable"}
    return {name: table[key] for name, key in names.items() if key in table}


def cpu_model() -> str:
    """Return the name of the processor."""
    lines = (read_text(Path("/proc/cpuinfo")) or "").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model", "cpu model")))
    return next(named, platform.processor() or platform.machine())


def congestion_controls() -> tuple[str | None, list[str]]:
    """Return the system's default TCP congestion control, and all that are available."""
    available = read_text(_TCP / "tcp_available_congestion_control") or ""
    return read_text(_TCP / "tcp_congestion_control"), available.split()


def socket_buffers() -> dict[str, list[int] | int | None]:
    """Return the kernel's bounds of socket buffers in bytes: tcp_* are minimum, default, maximum."""
    bounds: dict[str, list[int] | int | None] = {}
    for name in ("tcp_wmem", "tcp_rmem"):
        text = read_text(_TCP / name)
        bounds[name] = None if text is None else [int(number) for number in text.split()]
    for name in ("wmem_max", "rmem_max"):
        text = read_text(_CORE / name)
        bounds[name] = None if text is None else int(text)
    return bounds


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of ``PACKAGES``; None for those that are not installed."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Build:
    """The compiled core: its version, commit and target, and whether it was built for debugging."""

    version: str
    commit: str | None
    target: str
    debug: bool


@dataclass(frozen=True, slots=True)
class Hardware:
    """The processor, its cores, and the memory in bytes."""

    architecture: str
    cpu: str
    cores: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a machine on which a run's numbers depend. ``versions`` are of Python and of packages."""

    kernel: str
    machine: Hardware
    versions: Mapping[str, str | None]


def build() -> Build:
    """Return the build of the compiled core."""
    from thalweg import _core, wire

    return wire.decode(Build, _core.build_info())


def facts() -> Facts:
    """Return the facts about this machine that influence a run's measurements."""
    return Facts(
        f"{platform.system()} {platform.release()}",
        Hardware(platform.machine(), cpu_model(), cores(), memory_bytes().get("total")),
        versions(),
    )


def command_line(argv: Sequence[str] = sys.argv) -> list[str]:
    """Return the command line without the values of options that name secrets."""
    shown: list[str] = []
    hide = False
    for word in argv:
        option, equals, _ = word.partition("=")
        secret = option.startswith("--") and any(name in option for name in SECRET_OPTIONS)
        shown.append("***" if hide else f"{option}=***" if secret and equals else word)
        hide = secret and not equals
    return shown
