"""A guest kernel with virtual time: User Mode Linux, in which a command of this machine runs unchanged.

Time inside stands still while any process computes, and jumps to the next timer when all wait (``time-travel=inf-cpu``
of arch/um). So a transfer takes the time that the network's rate, delay and loss imply, however slow the machine is.
The guest sees the host's files read-only, except for the folders of the job and its record. It needs no root on the
host, and the command has root inside.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from thalweg import machine
from thalweg.errors import LabError
from thalweg.lab.guest import mappings
from thalweg.machine.parent import tied

if TYPE_CHECKING:
    from thalweg.plan import Plan

HERE: Final = Path(__file__).parent
#: The script that runs inside the guest. This path exists only there.
JOB: Final = Path("/run/guest/job")
#: The guest's memory in bytes: a part of the host's, of which only the pages that are used are taken.
LEAST_MEMORY: Final = 3 << 30
MOST_MEMORY: Final = 16 << 30
#: The kind of a lab's devices inside the guest. Only the guest kernel serves RDMA in each host's namespace.
DEVICES: Final = "rdma"
#: Maximum number of unacknowledged packets of an RDMA device: two bandwidth-delay products of 100 Gbit/s and 20 ms.
WINDOW: Final = 131_072
#: Maximum number of packets that an RDMA device hands to its network device at once. The network device drops packets
#: beyond 32767.
AT_ONCE: Final = 16_384
#: Seconds of the host's time after which a job is ended: a program that polls without sleeping stops virtual time.
LIMIT: Final = 1800.0
LOOK: Final = 0.05
#: Folders over which `init` mounts file systems of the guest, which hide the host's files.
COVERED: Final = (Path("/tmp"), Path("/run"), Path("/dev/shm"))  # noqa: S108
#: The likely cause of signal 11 inside: the guest kernel cannot report that the host refused a mapping.
MAPPINGS: Final = (
    "probably the host's limit of a process's mappings (vm.max_map_count), of which large updates need many in a guest"
)
TAIL: Final = 2000


def is_inside() -> bool:
    """Return whether this process runs inside a guest."""
    return JOB.exists()


def is_wanted(plan: Plan) -> bool:
    """Return whether a plan asks for virtual time and this process runs outside of a guest."""
    return plan.network is not None and plan.network.clock == "virtual" and not is_inside()


def kernel() -> Path:
    """Return the path of the guest kernel. Raises LabError if it has not been built."""
    path = kernel_path()
    if not path.is_file():
        raise LabError("there is no guest kernel", "Run `thalweg lab guest build`")
    return path


def kernel_path() -> Path:
    """Return where ``build.sh`` puts the guest kernel. Raises LabError if a file of its recipe is missing."""
    where = subprocess.run([HERE / "build.sh", "--where"], capture_output=True, text=True, check=False)
    if where.returncode != 0:
        raise LabError(f"there is no guest kernel: {where.stderr.strip()}", "Install thalweg again")
    return Path(where.stdout.strip())


# Called if a job in the guest was ended from outside, with the job's standard error so far and the exception.
OnCut = Callable[[str, BaseException], None]


def run(
    arguments: Sequence[str], *, folders: Sequence[Path] = (), limit: float = LIMIT, on_cut: OnCut | None = None
) -> tuple[int, str]:
    """Run a command inside the guest, in virtual time and in this folder; return its exit code and standard output.

    The command can write to this folder and to ``folders``, which are made if missing. It does not see the host's /tmp,
    except for these. Its standard error is passed on as it comes. Raises LabError if there is no guest kernel, if the
    guest fails, or if it has not ended after ``limit`` seconds of the host. A job that is ended from outside cannot
    finish its record; ``on_cut`` is called to do so. As root it raises the host's limit of mappings meanwhile.
    """
    program = kernel()
    with mappings.raised(_say), tempfile.TemporaryDirectory(prefix="thalweg-guest-") as name:
        folder = Path(name)
        (folder / "job").write_text(script(arguments, folders))
        with (folder / "console").open("wb") as console:
            guest = subprocess.Popen(boot(program, folder), stdin=subprocess.DEVNULL, stdout=console, stderr=console)
            try:
                _watch(guest, folder, limit)
                code = _code(folder)
            except BaseException as error:
                end(guest)
                if on_cut is not None:
                    on_cut(_text_of(folder / "err"), error)
                raise
        return code, (folder / "out").read_text(errors="replace")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def memory() -> int:
    """Return the guest's memory in bytes: half of what the host has available, within bounds."""
    available = machine.memory_bytes()["available"]
    return min(max(available // 2, LEAST_MEMORY), MOST_MEMORY)


def _code(folder: Path) -> int:
    """Return the job's exit code. Raises LabError if the guest ended before it wrote one."""
    code = folder / "code"
    if not code.is_file() or not code.read_text().strip():
        tail = (folder / "console").read_text(errors="replace")[-TAIL:].strip()
        raise LabError(f"the guest ended before its job: {tail or 'it says nothing'}", "Try again, or use --clock real")
    ended = int(code.read_text())
    if ended == 128 + signal.SIGSEGV:
        raise LabError(
            f"the job was killed by signal 11: {MAPPINGS}",
            f"Take a smaller model, or as root: sysctl {mappings.SYSCTL}={mappings.NEEDED}",
        )
    return ended


def boot(program: Path, folder: Path, clock: str = "virtual") -> list[str]:
    """Return the command that starts the guest. ``folder`` holds the job's script, and gets its output."""
    start = f"time-travel-start={int(time.time()) * 10**9}"  # nanoseconds
    travel = ("time-travel=inf-cpu", start) if clock == "virtual" else ()
    root = ("rootfstype=hostfs", "rootflags=/", "ro", f"init={HERE / 'init'}")
    consoles = ("con=null", "con0=fd:0,fd:1", "quiet", "panic=-1", f"uml_dir={folder}")
    rxe = (f"rdma_rxe.win={WINDOW}", f"rdma_rxe.inflight={AT_ONCE}")
    return [*tied(), str(program), f"mem={memory() >> 20}M", *root, *consoles, *rxe, *travel, f"guest={folder}"]


def _installed() -> list[Path]:
    """Return the folders of this program and its Python that the guest's file systems would hide (``COVERED``)."""
    needed = {HERE.parents[1], Path(sys.prefix), Path(sys.base_prefix), *(Path(path) for path in sys.path if path)}
    needed |= {path.resolve() for path in needed}
    covered = {path for path in needed if path.is_dir() and any(own in path.parents for own in COVERED)}
    return sorted(path for path in covered if not covered & set(path.parents))


def script(arguments: Sequence[str], folders: Sequence[Path]) -> str:
    """Return the job's script: it mounts this folder and ``folders`` writable, and runs a command in this folder."""
    exported = {**os.environ, "XDG_CACHE_HOME": "/tmp/cache"}  # noqa: S108 - the guest's own
    lines = [f"export {key}={shlex.quote(value)}" for key, value in exported.items() if key.isidentifier()]
    for needed in _installed():
        path = shlex.quote(str(needed))
        lines += [f"mkdir -p {path}", f"mount -r -t hostfs -o {path} hostfs {path}"]
    here = Path.cwd()
    for folder in (here, *folders):
        folder.mkdir(parents=True, exist_ok=True)
        path = shlex.quote(str(folder.resolve()))
        lines += [f"mkdir -p {path}", f"mount -t hostfs -o {path} hostfs {path}"]
    return "\n".join([*lines, f"cd {shlex.quote(str(here))}", f"exec {shlex.join(arguments)}", ""])


def _watch(guest: subprocess.Popen[bytes], folder: Path, limit: float) -> None:
    """Pass on the job's standard error until the guest has ended. Raises LabError after ``limit`` seconds."""
    begun = time.monotonic()
    seen = 0
    while True:
        ended = guest.poll() is not None
        seen = _pass_on(folder / "err", seen)
        if ended:
            return
        if time.monotonic() - begun > limit:
            raise LabError(
                f"the job was ended after {limit:.0f} s, the outer limit of virtual time",
                "A program that polls without sleeping stops virtual time: run it with --clock real",
            )
        time.sleep(LOOK)


def _pass_on(path: Path, at: int) -> int:
    """Write a file's bytes from offset ``at`` to standard error; return the offset after them."""
    if not path.exists():
        return at
    with path.open("rb") as file:
        file.seek(at)
        new = file.read()
    if new:
        sys.stderr.write(new.decode(errors="replace"))
        sys.stderr.flush()
    return at + len(new)


def _text_of(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def end(guest: subprocess.Popen[bytes]) -> None:
    """End the guest: terminate its kernel, whose processes are its children, or kill it after two seconds."""
    if guest.poll() is None:
        guest.terminate()
        try:
            guest.wait(2)
        except subprocess.TimeoutExpired:
            guest.kill()
            guest.wait()
