"""One direction of a link: the plan's keys for it, some of which exclude each other, and the resulting shape."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from thalweg.errors import PlanError
from thalweg.sections.network import UNLIMITED, BurstSection, DirectionSection
from thalweg.ui.units import format_seconds

KEYS: Final = (*DirectionSection.model_fields, "rtt")
# A later key replaces an earlier one of the same name. It also replaces these keys, which cannot be set together with
# it.
REPLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "loss": ("burst",),
    "loss_correlation": ("burst",),
    "burst": ("loss", "loss_correlation"),
    "delay": ("rtt",),
    "rtt": ("delay",),
}
_EXCLUDES: Final = (("loss", "burst"), ("loss_correlation", "burst"), ("delay", "rtt"))


@dataclass(frozen=True)
class Range:
    """A range of which a value is drawn. ``salt`` makes two ranges of the same key of one link draw independently."""

    low: float
    high: float
    salt: str

    def draw(self, seed: int, link: str, key: str) -> float:
        """Draw the value for a link. It does not depend on which other links there are."""
        return random.Random(f"{seed}/{link}/{self.salt}/{key}").uniform(self.low, self.high)


@dataclass(frozen=True)
class Burst:
    """Losses in bursts, by the Gilbert-Elliott model, as the core takes them."""

    enter: float
    leave: float
    loss_bad: float = 1.0
    loss_good: float = 0.0

    @property
    def lost(self) -> float:
        """The average share of packets that is lost."""
        bad = self.enter / (self.enter + self.leave) if self.enter else 0.0
        return bad * self.loss_bad + (1 - bad) * self.loss_good


@dataclass(frozen=True)
class Shape:
    """One direction of a link, as the core takes it. Units: bits a second, seconds, bytes, probabilities (0 to 1)."""

    rate: int | None = None
    delay: float = 0.0
    jitter: float = 0.0
    delay_correlation: float = 0.0
    keep_order: bool = False
    loss: float = 0.0
    loss_correlation: float = 0.0
    burst: Burst | None = None
    reorder: float = 0.0
    reorder_correlation: float = 0.0
    duplicate: float = 0.0
    duplicate_correlation: float = 0.0
    queue_bytes: int | None = None
    queue_packets: int | None = None
    down: bool = False

    def table(self) -> dict[str, object]:
        """Return it as a table for the core's JSON."""
        return asdict(self)

    @property
    def lost(self) -> float:
        """The average share of packets that is lost, independently or in bursts."""
        return self.loss if self.burst is None else self.burst.lost

    @property
    def least_delay(self) -> float:
        """The least delay in seconds, without queueing and transmission; 0 with reordering, as some packets skip it."""
        return 0.0 if self.reorder else max(0.0, self.delay - self.jitter)


# The value of a key, before values are drawn from ranges and after that.
Value: TypeAlias = int | float | str | bool | Burst
Ranged: TypeAlias = Value | Range


@dataclass(frozen=True)
class Keys:
    """Keys of one direction, before values are drawn from ranges. ``place`` is their place in the plan, for errors."""

    values: Mapping[str, Ranged]
    place: str

    def over(self, base: Keys) -> Keys:
        """Return ``base`` with these keys. Each replaces the same key of ``base``, and the keys that it excludes."""
        replaced = {other for key in self.values for other in REPLACES.get(key, ())}
        kept = {key: value for key, value in base.values.items() if key not in replaced}
        return Keys({**kept, **self.values}, self.place if self.values else base.place)

    def only(self, *names: str) -> Keys:
        """Return the keys with these names, as far as they are given."""
        return Keys({key: value for key, value in self.values.items() if key in names}, self.place)

    def shape(self, seed: int, link: str) -> Shape:
        """Return the shape of ``link`` from these keys. Raises PlanError if they contradict each other."""
        drawn: dict[str, Any] = {
            key: value.draw(seed, link, key) if isinstance(value, Range) else value
            for key, value in self.values.items()
        }
        if "rtt" in drawn:
            drawn["delay"] = drawn.pop("rtt") / 2
        rate, queue = drawn.pop("rate", UNLIMITED), drawn.pop("queue", None)
        clamp = bool(drawn.pop("clamp", False))
        counted = isinstance(queue, str)
        shape = Shape(
            rate=None if rate == UNLIMITED else max(1, round(rate)),
            queue_packets=int(queue.split()[0]) if isinstance(queue, str) else None,
            queue_bytes=None if counted else queue,
            **drawn,
        )
        _check(shape, self.place, link, clamp=clamp)
        return shape


def keys_of(section: DirectionSection, place: str, salt: str = "") -> Keys:
    """Return the keys given in a section. Raises PlanError, naming ``place``, if one excludes another."""
    section_values = {key: getattr(section, key, None) for key in KEYS}
    values = {
        key: _lifted(value, salt)
        for key, value in section_values.items()
        # In a section for both directions, `down` may be the table of that direction instead of a flag.
        if value is not None and not isinstance(value, DirectionSection)
    }
    for one, other in _EXCLUDES:
        if one in values and other in values:
            raise PlanError(f"{place} has both {one} and {other}", f"Remove {one} or {other}: one excludes the other")
    return Keys(values, place)


def _lifted(value: Value | BurstSection | list[float], salt: str) -> Ranged:
    if isinstance(value, list):
        return Range(value[0], value[1], salt) if value[0] != value[1] else value[0]
    return Burst(**value.model_dump()) if isinstance(value, BurstSection) else value


def _check(shape: Shape, place: str, link: str, *, clamp: bool) -> None:
    """Raise PlanError for values that contradict each other, also if they come from different places of the plan."""
    if shape.jitter > shape.delay and not clamp:
        raise PlanError(
            f"link {link!r}: the jitter of {format_seconds(shape.jitter)} exceeds the delay of "
            f"{format_seconds(shape.delay)} ({place})",
            "Make jitter at most delay, or say clamp = true: what would be below zero is then zero",
        )
    if shape.reorder and not shape.delay:
        raise PlanError(
            f"link {link!r} reorders packets by letting them skip the delay, and has none ({place})",
            "Give delay or rtt, or remove reorder",
        )
    if shape.burst is not None and shape.burst.enter and not shape.burst.leave:
        raise PlanError(f"link {link!r} never leaves a burst of losses ({place})", "Make burst.leave more than 0")
