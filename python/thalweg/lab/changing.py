"""Changes links of a running lab: keys from the command line replace keys of the link's current shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from thalweg.errors import LabError, PlanError
from thalweg.lab.client import RunningLab
from thalweg.network.shape import Shape, Value

DIRECTIONS: Final = {"up": ("ab",), "down": ("ba",), None: ("ab", "ba")}
ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Change:
    """A direction of a link that was changed, and its new shape."""

    link: str
    direction: str
    shape: Shape


def change(lab: RunningLab, link: str, words: str, direction: str | None) -> list[Change]:
    """Change a link, or all (``*``), by ``words`` such as ``loss=5%,rate=10mbit``; return each changed direction.

    ``direction`` is up, down or None for both.
    Raises PlanError, LabError.
    """
    if direction not in DIRECTIONS:
        raise PlanError(f"{direction!r} is no direction", "Give up (client to server) or down")
    names = [entry["name"] for entry in lab.state.links]
    if link != ALL and link not in names:
        raise LabError(
            f"the lab {lab.name} has no link {link!r}", f"Give one of {', '.join(names)}, or {ALL!r} for all"
        )
    changed = []
    for entry in lab.status().links:
        if link in (ALL, entry.link) and entry.direction in DIRECTIONS[direction]:
            shape = merged(entry.shape, words, entry.direction, entry.link)
            lab.set(entry.link, entry.direction, shape)
            changed.append(Change(entry.link, entry.direction, shape))
    return changed


def merged(now: Shape, words: str, direction: str, link: str) -> Shape:
    """Return the shape ``now`` changed by ``words``. Raises PlanError."""
    from thalweg.network import inline
    from thalweg.network.shape import Keys, keys_of
    from thalweg.network.topology import pair_of_profile
    from thalweg.sections.network import ChangeSection

    table = inline.parse_shape(words)
    section = ChangeSection.model_validate({"at": 0, **table})
    base = Keys(values_of(now), f"link {link}")
    if section.profile is not None:
        pair = pair_of_profile(section.profile)
        base = pair.up if direction == "ab" else pair.down
    return keys_of(section, words).over(base).shape(0, link)


def values_of(shape: Shape) -> dict[str, Value]:
    """Return a shape as the keys and values of a plan."""
    from thalweg.sections.network import UNLIMITED

    left_out = {"queue_bytes", "queue_packets"} | ({"loss", "loss_correlation"} if shape.burst else set())
    values = {key: value for key, value in vars(shape).items() if value is not None and key not in left_out}
    values["rate"] = shape.rate or UNLIMITED
    if shape.queue_packets:
        values["queue"] = f"{shape.queue_packets} packets"
    elif shape.queue_bytes:
        values["queue"] = shape.queue_bytes
    return values
