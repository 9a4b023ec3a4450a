"""Gives each transport one colour, the same in every plot and on every page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Final

from thalweg.transports import registry

# Chosen so that colour-blind readers can distinguish them on light and dark backgrounds; the first are those of Okabe
# and Ito. Transports get them in the registry's order.
COLOURS: Final = (
    "#0a84c6", "#e0782f", "#009e73", "#cc79a7", "#b8860b", "#7b61d1", "#d02060", "#56b4e9", "#8c564b", "#6b8e23",
    "#17a2a2", "#9a5fb4",
)  # fmt: skip
# No dotted line, because dots mean lower bounds.
DASHES: Final = ("solid", "dash", "dashdot", "longdash", "longdashdot")
# Shades for the names of one transport: the fraction of the way from its colour to white, or, if negative, to black.
SHADES: Final = (0.0, -0.35, 0.4, -0.6, 0.65)


def colour(index: int) -> str:
    """Return the colour of line ``index``, for lines that belong to no transport, such as those of links."""
    return COLOURS[index % len(COLOURS)]


def of_transports(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name such as ``tcp cubic``: shades of its transport's colour."""
    ways: dict[str, list[str]] = defaultdict(list)
    for name in sorted(set(names)):
        ways[name.partition(" ")[0]].append(name)
    return {
        name: _shade(_base(scheme), SHADES[index % len(SHADES)])
        for scheme, scheme_names in ways.items()
        for index, name in enumerate(scheme_names)
    }


@cache
def _order() -> tuple[str, ...]:
    return tuple(entry.name for entry in registry.transports())


def _base(scheme: str) -> str:
    """Return a transport's colour, even if this build does not have the transport."""
    transports = _order()
    return colour(transports.index(scheme) if scheme in transports else len(transports) + sum(scheme.encode()))


def _shade(hexed: str, part: float) -> str:
    """Return a colour moved by the fraction ``part`` to white, or, if that is negative, to black."""
    goal = 255 if part > 0 else 0
    channels = (int(hexed[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(one + (goal - one) * abs(part)):02x}" for one in channels)
