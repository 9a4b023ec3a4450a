"""The congestion control of a run's senders. It is part of a transport's name, even if the system chose it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from thalweg.transports import registry

if TYPE_CHECKING:
    from thalweg.plan import Plan
    from thalweg.report.source import Run

BBR: Final = "bbr"
MORE: Final = "+"
HIDES: Final = (
    "{transports}: BBR is this system's congestion control, and nobody asked for it. It hardly slows down for loss, "
    "while Cubic, most systems' default, does. To see that, run with --congestion cubic, or an axis "
    'congestion = ["cubic", "bbr"]'
)


def named_congestion(plan: Plan) -> str | None:
    """Return the congestion control that a plan names: ``cubic``, ``bbr+cubic`` if clients differ, or None."""
    section = plan.transport
    if section.client_congestion:
        return MORE.join(sorted(set(section.client_congestion)))
    everybody = None if plan.network is None else plan.network.tcp.congestion
    return section.congestion or (everybody if _can_choose(plan) else None)


def congestion(run: Run) -> str | None:
    """Return the congestion control of a run's senders; None if it is unknown, or if there is none.

    The first known one of these counts: the plan's, the one that the clients' kernels reported, the server's, the
    system's default.
    """
    for way in ("up", "down"):
        ways = (row.congestion_control for row in run.transfers if row.direction == way)
        controls = {control for control in ways if control is not None}
        if controls and not named_congestion(run.plan):
            return MORE.join(sorted(controls))
    return named_congestion(run.plan) or _system(run)


def _system(run: Run) -> str | None:
    return run.manifest.part("congestion_control").text("system") if _can_choose(run.plan) else None


def default_congestion(run: Run) -> str | None:
    """Return a run's congestion control if the plan names none, so that the system chose it; else None."""
    return None if named_congestion(run.plan) else congestion(run)


def bbr_by_default(runs: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return a warning if several transports are compared, and some use BBR only because the system does.

    ``runs``: the transport of each run, and its congestion control if the plan names none.
    """
    every = list(runs)
    hidden = sorted({transport for transport, system in every if system is not None and BBR in system})
    if not hidden or len({transport for transport, _ in every}) < 2:
        return []
    return [HIDES.format(transports=", ".join(hidden))]


def with_system(name: str, runs: Iterable[tuple[str, str | None]]) -> str:
    """Return the name of a failed run's transport, with the congestion control of other runs.

    The failed run has no record that says which congestion control the system chose. ``runs`` has transport and
    congestion control of the other runs in the same condition. If all of them with transport ``name`` have the same
    congestion control, the failed run gets it too.
    """
    names = {transport for transport, word in runs if word is not None and _without(transport, word) == name}
    return names.pop() if len(names) == 1 else name


def _without(transport: str, word: str) -> str:
    return " ".join(part for part in transport.split() if part != word)


def _can_choose(plan: Plan) -> bool:
    return any(one.name == plan.scheme and one.capabilities.congestion for one in registry.transports())
