"""Checks what this machine can do, what each absence costs, and a path's throughput. It changes nothing."""

from __future__ import annotations

import ctypes
import errno
import gzip
import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from thalweg import _core, extras, machine, wire
from thalweg.errors import CoreError, DataError, LabError, PlanError
from thalweg.transports import pki

if TYPE_CHECKING:
    from thalweg.doctor.probing import ProbeOptions

CAP_NET_ADMIN: Final = 12
ROUND_TRIP_SECONDS: Final = 0.04
BPF_MAP_GET_NEXT_ID: Final = 12
BPF_SYSCALL: Final = {"x86_64": 321, "aarch64": 280}
# The smallest network: two hosts, and a link without limits.
LAB: Final = {
    "seed": 0,
    "hosts": [{"name": "server"}, {"name": "client-1"}],
    "switches": [],
    "links": [{"name": "client-1", "a": "client-1", "b": "server", "ab": {}, "ba": {}}],
    "changes": [],
}
SBIN: Final = ("/usr/sbin", "/sbin", "/usr/local/sbin")


@dataclass(frozen=True)
class Check:
    """One checked feature: whether it is present, the details found, and what its absence costs."""

    name: str
    available: bool
    detail: str
    cost: str


@dataclass(frozen=True, slots=True)
class CertificateAge:
    """A certificate of a pki folder: its file, name and role, when it expires (ISO 8601), and days until then.

    ``days`` is negative once it has expired. ``revoked``: since when it does not count, or None.
    """

    file: str
    name: str
    role: str | None
    expires: str
    days: float
    revoked: str | None


@dataclass(frozen=True, slots=True)
class Machine:
    """The processor, and the memory in bytes: ``total`` and ``available``."""

    architecture: str
    cpu: str
    cores: int
    memory_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tcp:
    """The system's congestion control, those it has, and the bounds of socket buffers in bytes."""

    congestion: str | None
    available: Sequence[str]
    buffers: Mapping[str, list[int] | int | None]


@dataclass(frozen=True, slots=True)
class Carriers:
    """What carries a link's control messages, and what its chunks: ``udp`` or ``tcp``."""

    control: str
    chunks: str


@dataclass(frozen=True, slots=True)
class Way:
    """Whether a way to the peer passes, and after how many seconds it answered; or the ``reason`` why it does not."""

    passes: bool
    seconds: float | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways to the peer's port."""

    udp: Way
    tcp: Way


@dataclass(frozen=True, slots=True)
class _Probed:
    """The core's measurements: bytes a second of one stream, and the round trip of a control message in seconds."""

    raw_bytes_per_second: float | None
    thalweg_bytes_per_second: float
    control_round_trip_seconds: float
    carriers: Carriers | None
    ways: Ways | None


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput to ``target`` in bytes a second, and the round trip of a control message in seconds.

    ``raw_bytes_per_second``: of a TCP stream, or None where TCP does not pass. ``carriers`` and ``ways`` are None for a
    transport that has one way only.
    """

    target: str
    raw_bytes_per_second: float | None
    thalweg_bytes_per_second: float
    control_round_trip_seconds: float
    carriers: Carriers | None
    ways: Ways | None


@dataclass(frozen=True, slots=True)
class Report:
    """What this machine can do."""

    thalweg: machine.Build
    versions: Mapping[str, str | None]
    kernel: str
    machine: Machine
    tcp: Tcp
    advice: Sequence[str]
    checks: Sequence[Check]
    certificates: Sequence[CertificateAge]
    path: Throughput


def report(path: Throughput, folder: Path | None = None) -> Report:
    """Return versions, machine, TCP settings, checks, what a ``path`` carries, and the certificates of a pki folder.

    Raises PlanError, CoreError for a file of that folder that is no certificate.
    """
    current, available = machine.congestion_controls()
    facts = machine.facts()
    own = facts.machine
    return Report(
        thalweg=machine.build(),
        versions=facts.versions,
        kernel=facts.kernel,
        machine=Machine(own.architecture, own.cpu, own.cores, machine.memory_bytes()),
        tcp=Tcp(current, available, machine.socket_buffers()),
        advice=_advice(current),
        checks=[check() for check in CHECKS],
        certificates=[] if folder is None else certificates(folder, time.time()),
        path=path,
    )


def certificates(folder: Path, now: float) -> list[CertificateAge]:
    """Return the certificates of a pki folder, those that expire first at the top. Raises PlanError, CoreError."""
    gone = pki.revoked(folder)
    found = sorted(pki.certificates(folder), key=lambda one: one[1].not_after)
    if not found:
        raise PlanError(f"{folder} has no certificates", "Name the folder of `thalweg pki init`")
    return [
        CertificateAge(
            path.name,
            said.name,
            said.role,
            datetime.fromtimestamp(said.not_after, timezone.utc).isoformat(),
            round((said.not_after - now) / 86_400, 1),
            gone.get((said.role or "", said.name)),
        )
        for path, said in found
    ]


def path_loopback(size: int) -> Throughput:
    """Return the throughput of a raw TCP stream and of thalweg over loopback. Raises CoreError."""
    return _path("loopback", _core.probe_loopback(size))


def path_to(url: str, options: ProbeOptions, size: int) -> Throughput:
    """Return the same throughputs to a peer that runs ``thalweg doctor --serve``. Raises CoreError."""
    try:
        measured = _core.probe_peer(url, wire.encode(options), size)
    except CoreError as error:
        if error.kind != "closed":
            raise
        # As it is if the peer serves another transport at that port.
        hint = (
            f"Check that `thalweg doctor --serve {url.partition('://')[0]}://...` runs there, with the same transport"
        )
        raise CoreError(error.cause, hint, error.kind, error.operation, error.retry) from error
    return _path(url, measured)


def _path(target: str, measured: str) -> Throughput:
    probed = wire.decode(_Probed, measured)
    return Throughput(
        target,
        probed.raw_bytes_per_second,
        probed.thalweg_bytes_per_second,
        probed.control_round_trip_seconds,
        probed.carriers,
        probed.ways,
    )


def _advice(congestion: str | None) -> list[str]:
    advice = []
    if congestion not in (None, "cubic"):
        advice.append(
            f"the system's congestion control is {congestion}; results of others are mostly of cubic: give --congestion"
        )
    wmem = machine.socket_buffers()["tcp_wmem"]
    if isinstance(wmem, list):
        limit = wmem[-1] * 8 / ROUND_TRIP_SECONDS / 1e6
        advice.append(
            f"tcp_wmem allows {wmem[-1]} bytes in flight: over 40 ms one stream cannot pass {limit:.0f} Mbit/s; "
            "take more with --streams, or raise net.ipv4.tcp_wmem"
        )
    return advice


def _network_admin() -> Check:
    status = machine.read_text(Path("/proc/self/status")) or ""
    effective = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff")), 0)
    able = bool(effective >> CAP_NET_ADMIN & 1)
    detail = f"user id {os.geteuid()}, CAP_NET_ADMIN {'yes' if able else 'no'}"
    return Check("root", able, detail, "no emulated links at packet level; --throttle works on messages")


def _tun() -> Check:
    cost = "no relay that emulates links at packet level"
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return Check("tun", False, f"/dev/net/tun: {error.strerror}", cost)
    return Check("tun", True, "/dev/net/tun opens", cost)


def _lab() -> Check:
    cost = "links are emulated at message level, and no `thalweg lab`"
    try:
        _core.Lab(wire.encode(LAB)).close()
    except _core.CoreError as error:
        return Check("lab", False, str(error), cost)
    return Check("lab", True, "made one of two hosts and removed it", cost)


def _guest() -> Check:
    from thalweg.lab import guest

    cost = "no --clock virtual"
    try:
        return Check("guest", True, str(guest.kernel()), cost)
    except LabError as error:
        return Check("guest", False, error.cause, f"{cost}. {error.hint}")


def _mappings() -> Check:
    from thalweg.lab.guest import mappings

    limit, name = mappings.limit(), mappings.SYSCTL
    cost = f"--clock virtual with updates of some 100 MiB; sysctl {name}={mappings.NEEDED}"
    if limit is None:
        return Check("mappings", False, f"{name} cannot be read", cost)
    is_enough = limit >= mappings.NEEDED
    raises = ", which a run in virtual time raises and puts back" if mappings.may_raise() and not is_enough else ""
    return Check("mappings", is_enough or bool(raises), f"{name} is {limit}{raises}", cost)


def _cgroup() -> Check:
    from thalweg.lab import cgroups

    cost = "no stress.cpu_quota"
    hierarchy = cgroups.detect()
    if hierarchy is None:
        return Check("cgroup", False, "none with the cpu controller is mounted", cost)
    return Check("cgroup", os.access(hierarchy.root, os.W_OK), f"v{hierarchy.version} at {hierarchy.root}", cost)


def _sched_fifo() -> Check:
    cost = "emulated links are late by milliseconds on a busy machine"
    errors: list[OSError | None] = []

    def ask() -> None:
        # The call changes only this thread, and the thread ends at once.
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            errors.append(None)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    (error,) = errors
    return Check("sched_fifo", error is None, "allowed" if error is None else str(error.strerror), cost)


def _netem() -> Check:
    cost = "no emulation by the kernel's own queueing discipline; a relay over TUN can stand in"
    tc, unshare = _which("tc"), _which("unshare")
    if tc is not None and unshare is not None and os.geteuid() == 0:
        # The command runs in a network namespace, which ends with it.
        command = [unshare, "-n", tc, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=10)
        said = done.stderr.strip().splitlines()
        return Check("netem", done.returncode == 0, said[0] if said else "tried in a namespace of its own", cost)
    setting = _kernel_setting("CONFIG_NET_SCH_NETEM")
    detail = "the kernel's configuration is not readable" if setting is None else f"CONFIG_NET_SCH_NETEM={setting}"
    return Check("netem", setting in ("y", "m"), detail, cost)


def _ebpf() -> Check:
    cost = "no transport unifl over eBPF, and no routes of notes inside the kernel"
    number = BPF_SYSCALL.get(platform.machine())
    if number is None:
        return Check("ebpf", False, f"not known on {platform.machine()}", cost)
    attributes = (ctypes.c_char * 128)()
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(number, BPF_MAP_GET_NEXT_ID, ctypes.byref(attributes), len(attributes)) != 0
    code = ctypes.get_errno() if failed else 0
    able = code in (0, errno.ENOENT)  # ENOENT: the call is allowed, and there is no map
    btf = Path("/sys/kernel/btf/vmlinux").exists()
    detail = f"bpf(): {'allowed' if able else os.strerror(code)}, BTF {'yes' if btf else 'no'}"
    return Check("ebpf", able, detail, cost)


def _routes() -> Check:
    cost = "notes of a tree's workers go over Unix sockets; --routes kernel is refused"
    try:
        _core.tree_routes()
    except _core.CoreError as error:
        return Check("routes", False, str(error), cost)
    return Check("routes", True, "loaded the program, connected a socket and removed both", cost)


def _baselines() -> Check:
    cost = "no ways of papers to compare with, which experiments use; a core with them is built from the source"
    return Check("baselines", _core.BASELINES, f"{'in' if _core.BASELINES else 'not in'} this build", cost)


def _rdma() -> Check:
    cost = "--transport rdma is tcp; with libibverbs there is RDMA inside the guest kernel (--clock virtual)"
    try:
        devices = wire.decode(list[RdmaDevice], _core.rdma_devices())
    except _core.CoreError as error:
        return Check("rdma", False, str(error), cost)
    usable = any(device.address for device in devices)
    return Check("rdma", usable, f"{'; '.join(map(_described, devices))}; {_lockable()}", cost)


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device. ``reason`` says why it has no ``address``; ``mtu`` is in bytes."""

    name: str
    address: str | None = None
    reason: str | None = None
    mtu: int | None = None
    windows: bool = False


def _described(device: RdmaDevice) -> str:
    if device.address is None:
        return f"{device.name}: {device.reason}"
    grants = "memory windows" if device.windows else "no memory windows"
    return f"{device.name} at {device.address}, packets of {device.mtu} bytes, {grants}"


def _lockable() -> str:
    """Return a text on how much memory this process may lock: an RDMA device needs locked arenas."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return "any memory may be locked"
    return f"{limit} bytes of memory may be locked (ulimit -l)"


def _program(name: str, cost: str) -> Callable[[], Check]:
    def check() -> Check:
        path = _which(name)
        return Check(name, path is not None, path or "not installed", cost)

    return check


def _package(name: str, cost: str) -> Callable[[], Check]:
    def check() -> Check:
        version = machine.version(name)
        brings = f"{cost}; thalweg[{extras.EXTRAS[name]}] brings it"
        return Check(name, version is not None, version or "not installed", brings)

    return check


def _data(name: str) -> Callable[[], Check]:
    def check() -> Check:
        cost = f"no training on {name}"
        try:
            return Check(f"data {name}", True, _where(name), cost)
        except DataError as error:
            return Check(f"data {name}", False, error.cause, f"{cost}. {error.hint}")

    return check


def _where(name: str) -> str:
    from thalweg.data import PACKAGES, fashion_mnist, files

    package = PACKAGES.get(name)
    if package is None:
        system = fashion_mnist.SYSTEM if name == fashion_mnist.NAME else ()
        return str(files.places(name, None, system)[0])
    if importlib.util.find_spec(package) is None:
        raise DataError(f"the package {package} is not installed", extras.hint(package))
    return f"ships in {package}"


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *SBIN]))


def _kernel_setting(name: str) -> str | None:
    """Return y, m or n as the kernel was configured, or None if its configuration cannot be read."""
    for path in (Path("/proc/config.gz"), Path(f"/boot/config-{platform.release()}")):
        try:
            text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        except OSError:
            continue
        values = (line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{name}="))
        return next(values, "n")
    return None


CHECKS: Final[tuple[Callable[[], Check], ...]] = (
    _network_admin,
    _tun,
    _lab,
    _guest,
    _mappings,
    _sched_fifo,
    _cgroup,
    _program("stress-ng", "no stress.cpu; apt install stress-ng"),
    _netem,
    _ebpf,
    _routes,
    _rdma,
    _baselines,
    _program("mosquitto", "--transport mqtt needs a broker's URL; apt install mosquitto"),
    _program("rabbitmq-server", "--transport amqp needs a broker's URL; apt install rabbitmq-server"),
    _package("torch", "no training of PyTorch models"),
    _package("torchvision", "no resnet18, resnet34, resnet152, vgg16"),
    _package("pyarrow", "no report, advise, bench; records have JSON lines and no Parquet tables"),
    _package("matplotlib", "no report --figures"),
    _package("networkx", "no random graphs; no graph in a report"),
    _package("flwr", "no flower"),
    _package("transformers", "no gpt2, gpt2-mini"),
    _package("peft", "no LoRA, as gpt2+lora16"),
    _package("ray", "no --engine ray for trees"),
    _data("digits"),
    _data("mnist"),
    _data("fashion-mnist"),
    _data("cifar10"),
)
