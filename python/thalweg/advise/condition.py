"""The conditions of a measurement, as numbers that can be compared with the conditions of a question."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from thalweg.errors import PlanError
from thalweg.plan.least import update_bytes
from thalweg.ui.phrases import number_of
from thalweg.ui.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from thalweg.network.routes import Hop
    from thalweg.network.shape import Shape
    from thalweg.network.spec import Spec
    from thalweg.plan import Plan

# Delays and losses below these values count as equal to them, because they hardly distinguish networks.
LEAST_DELAY: Final = 0.001
LEAST_LOSS: Final = 0.001
# Distances, in doublings, for differences that have no size, such as another kind of emulation.
NO_LIMIT: Final = 10.0
OTHER_STRESS: Final = 3.0
OTHER_TOPOLOGY: Final = 2.0
OTHER_LAYERS: Final = 3.0
OTHER_REPAIR: Final = 3.0
OTHER_REST: Final = 0.5


@dataclass(frozen=True)
class Path:
    """One direction between a client and the server: bits a second (None: no limit), seconds, fraction of packets."""

    rate: int | None = None
    delay: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True)
class Condition:
    """The conditions of a job's transport. ``rest`` has the other properties of the links, as text."""

    update_bytes: int
    clients: int
    up: Path
    down: Path
    topology: str = ""
    rest: str = ""
    stress: str = ""
    layers: str = ""
    is_trained: bool = False
    # Whether missing ranges are sent again until all have arrived. An update with holes takes less time.
    resend: bool = True

    @property
    def is_free(self) -> bool:
        """Whether nothing limits network or computation."""
        free = Path()
        return (self.up, self.down, self.stress, self.layers) == (free, free, "", "")

    def words(self, *, clients: bool = True) -> str:
        """Return the condition on one line, with or without the number of clients."""
        ways = [_path(self.up)] if self.up == self.down else [f"up {_path(self.up)}", f"down {_path(self.down)}"]
        network = "; ".join(ways) if self.topology else "loopback"
        if self.layers and not self.topology:
            network = f"{ways[0]} (layers)"
        parts = [network, self.topology if self.topology not in ("", "star") else ""]
        parts += [f"updates of {format_bytes(self.update_bytes)}" + (", trained" if self.is_trained else "")]
        parts += [number_of(self.clients, "client")] * clients + [f"stress {self.stress}"] * bool(self.stress)
        parts += [] if self.resend else [_repair(self)]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Difference:
    """One difference between a measured and a wanted condition: its size in doublings, and its text."""

    doublings: float
    words: str


def condition_of(plan: Plan, size: int | None = None) -> Condition:
    """Return the condition of a plan's job. ``size`` is the bytes of its updates, if they were measured.

    Raises PlanError if a file that its network names cannot be read, or if the size is unknown.
    """
    size = update_bytes(plan) if size is None else size
    if size is None:
        raise PlanError(
            f"how large updates of {plan.label} are is not known before it runs",
            "Ask for a payload of the same size: --model payload:SIZE",
        )
    stress = plan.stress
    load = {} if stress is None else stress.model_dump(exclude_none=True, exclude_unset=True)
    fault = plan.layers.fault
    up = down = Path(rate=plan.layers.throttle)
    topology = rest = ""
    network = plan.network
    if network is not None and network.emulator != "none":
        from thalweg.plan.emulated import network_of

        # Random link values depend on the seed, which differs between repetitions of one condition.
        built = network_of(plan.merge({"job.seed": 0}))
        up, down, rest = _links(built)
        topology = network.topology
    return Condition(
        update_bytes=size,
        clients=plan.participants,
        up=up,
        down=down,
        topology=topology,
        rest=rest,
        stress=" ".join(f"{key}={value}" for key, value in sorted(load.items())),
        layers=json.dumps(plan.layers.emulation()) if fault or plan.layers.throttle else "",
        is_trained=not plan.is_payload,
        resend=plan.repair.resend,
    )


def differences(wanted: Condition, measured: Condition, *, clients: bool) -> list[Difference]:
    """Return how a measured condition differs from the wanted one. ``clients``: whether their number counts."""
    listed = [
        *_rates(wanted, measured),
        _ratio("round trip", _rtt(wanted), _rtt(measured), LEAST_DELAY, format_seconds),
        _ratio("loss", _loss(wanted), _loss(measured), LEAST_LOSS, lambda share: f"{100 * share:.3g} %"),
        _ratio("update", wanted.update_bytes, measured.update_bytes, 0.0, format_bytes),
        _other("stress", wanted.stress, measured.stress, OTHER_STRESS),
        _other("topology", wanted.topology or "star", measured.topology or "star", OTHER_TOPOLOGY),
        _other("layers", wanted.layers, measured.layers, OTHER_LAYERS),
        _other("repair", _repair(wanted), _repair(measured), OTHER_REPAIR),
    ]
    if clients:
        listed.append(_ratio("clients", wanted.clients, measured.clients, 0.0, lambda count: f"{count:.0f}"))
    if wanted.rest != measured.rest and wanted.topology and measured.topology:
        listed.append(Difference(OTHER_REST, "jitter, queues, bursts, TCP's settings or changes of the links differ"))
    return [one for one in listed if one.doublings]


def distance(listed: Sequence[Difference]) -> float:
    """Return the sum of all differences, in doublings."""
    return sum(one.doublings for one in listed)


def _path(path: Path) -> str:
    rate = "no limit" if path.rate is None else format_rate(path.rate)
    loss = f", loss {100 * path.loss:.3g} %" if path.loss else ""
    return f"{rate}, {format_seconds(path.delay)} one way{loss}"


def _links(spec: Spec) -> tuple[Path, Path, str]:
    """Return the median path of all clients up and down, and the other properties of their links."""
    from thalweg.network.routes import routes
    from thalweg.network.topology import SERVER

    paths = routes(spec)
    hubs = {client: spec.homes.get(client, SERVER) for client in spec.clients}
    up = [_along(paths[client, hub]) for client, hub in hubs.items()]
    down = [_along(paths[hub, client]) for client, hub in hubs.items()]
    shapes = sorted({json.dumps(_rest(getattr(link, way))) for path in paths.values() for link, way in path})
    sysctls = sorted(
        {f"{key}={value}" for host in spec.hosts for key, value in host.sysctls.items() if "mem" not in key}
    )
    limiters = ["limiter=device"] * any(host.egress is not None for host in spec.hosts)
    changes = [(change.at, change.link, change.direction, change.shape.table()) for change in spec.changes]
    return _middle(up), _middle(down), json.dumps([shapes, sysctls + limiters, changes])


def _along(path: Sequence[Hop]) -> Path:
    shapes = [getattr(link, way) for link, way in path]
    rates = [shape.rate for shape in shapes if shape.rate is not None]
    arrives = math.prod(1 - shape.lost for shape in shapes)
    return Path(min(rates, default=None), sum(shape.delay for shape in shapes), 1 - arrives)


def _middle(paths: Sequence[Path]) -> Path:
    rates = [path.rate for path in paths if path.rate is not None]
    return Path(
        round(median(rates)) if len(rates) == len(paths) else None,
        median(path.delay for path in paths),
        round(median(path.loss for path in paths), 9),
    )


def _rest(shape: Shape) -> dict[str, object]:
    return {key: value for key, value in shape.table().items() if key not in ("rate", "delay", "loss")}


def _rates(wanted: Condition, measured: Condition) -> list[Difference]:
    rates = []
    for name in ("up", "down"):
        one, other = getattr(wanted, name).rate, getattr(measured, name).rate
        if (one is None) != (other is None):
            words = f"rate {name}: {_rate(other)} measured, {_rate(one)} asked"
            rates.append(Difference(NO_LIMIT / 2, words))
        elif one is not None:
            rates.append(_ratio(f"rate {name}", one, other, 0.0, format_rate))
    return rates


def _repair(condition: Condition) -> str:
    return "losses resent" if condition.resend else "losses not resent"


def _rate(rate: int | None) -> str:
    return "no limit" if rate is None else format_rate(rate)


def _rtt(condition: Condition) -> float:
    return condition.up.delay + condition.down.delay


def _loss(condition: Condition) -> float:
    return max(condition.up.loss, condition.down.loss)


def _ratio(name: str, wanted: float, measured: float, least: float, form: Any) -> Difference:
    doublings = abs(math.log2((measured + least) / (wanted + least)))
    return Difference(doublings, f"{name}: {form(measured)} measured, {form(wanted)} asked")


def _other(name: str, wanted: str, measured: str, doublings: float) -> Difference:
    words = f"{name}: {measured or 'none'} measured, {wanted or 'none'} asked"
    return Difference(0.0 if wanted == measured else doublings, words)
