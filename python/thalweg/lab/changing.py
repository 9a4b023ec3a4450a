"""Changes links of a running lab: keys from the command line replace keys of the link's current shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from thalweg.errors import LabError, PlanError
from thalweg.lab.client import RunningLab

DIRECTIONS: Final = {"up": ("ab",), "down": ("ba",), None: ("ab", "ba")}
ALL: Final = "*"


def change(lab: RunningLab, link: str, words: str, direction: str | None) -> list[dict[str, Any]]:
    """Change a link, or all (``*``), by ``words`` such as ``loss=5%,rate=10mbit``; return each changed direction.

    A returned entry has ``link``, ``direction`` and the new ``shape``. ``direction`` is up, down or None for both.
    Raises PlanError, LabError.
    """
    if direction not in DIRECTIONS:
        raise PlanError(f"{direction!r} is no direction", "Give up (client to server) or down")
    known = [entry["name"] for entry in lab.state.links]
    if link != ALL and link not in known:
        raise LabError(
            f"the lab {lab.name} has no link {link!r}", f"Give one of {', '.join(known)}, or {ALL!r} for all"
        )
    changed = []
    for entry in lab.status()["links"]:
        if link in (ALL, entry["link"]) and entry["direction"] in DIRECTIONS[direction]:
            shape = merged(entry["shape"], words, entry["direction"], entry["link"])
            lab.set(entry["link"], entry["direction"], shape)
            changed.append({"link": entry["link"], "direction": entry["direction"], "shape": shape})
    return changed


def merged(now: Mapping[str, Any], words: str, direction: str, link: str) -> dict[str, Any]:
    """Return the shape ``now`` changed by ``words``, in the core's form. Raises PlanError."""
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
    return keys_of(section, words).over(base).shape(0, link).table()


def values_of(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Return a shape, which is in the core's form, as the keys and values of a plan."""
    from thalweg.network.shape import Burst
    from thalweg.sections.network import UNLIMITED

    values = {key: value for key, value in shape.items() if value is not None and not key.startswith("queue_")}
    values["rate"] = shape.get("rate") or UNLIMITED
    if shape.get("burst"):
        values["burst"] = Burst(**shape["burst"])
        values = {key: value for key, value in values.items() if key not in ("loss", "loss_correlation")}
    if shape.get("queue_packets"):
        values["queue"] = f"{shape['queue_packets']} packets"
    elif shape.get("queue_bytes"):
        values["queue"] = shape["queue_bytes"]
    return values
