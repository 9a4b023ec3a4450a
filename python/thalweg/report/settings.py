"""The settings in which the plans of runs differ, except settings that the names of the runs mention anyway.

Runs that differ in any of them are not repetitions of each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from thalweg.ui.phrases import phrase

if TYPE_CHECKING:
    from thalweg.plan import Plan

# Sections whose settings are in a run's name, or do not affect the measurements.
NAMED_SECTIONS: Final = frozenset({"model", "network", "layers", "security", "record", "hosts", "algorithm"})
NAMED: Final = frozenset(
    {
        "job.seed", "job.clients", "job.graph", "job.rounds", "transport.url", "transport.congestion",
        "transport.client_congestion", "transport.streams", "repair.resend", "app.object",
    }
)  # fmt: skip
MOST: Final = 4


def settings(plans: Sequence[Plan]) -> list[str]:
    """Return for each plan the settings in which they differ, as ``fanout sequential``; nothing if they are alike."""
    flat_plans = [dict(_flat("", plan.model_dump(mode="json"))) for plan in plans]
    keys = list(dict.fromkeys(key for one in flat_plans for key in one))
    differing = [key for key in keys if len({repr(one.get(key)) for one in flat_plans}) > 1]
    return [_words(one, differing) for one in flat_plans]


def _flat(path: str, table: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        if name in NAMED_SECTIONS or name in NAMED:
            continue
        if isinstance(value, dict):
            yield from _flat(name, value)
        else:
            yield name, value


def _words(one: Mapping[str, object], differing: Sequence[str]) -> str:
    present = [(key, one[key]) for key in differing if one.get(key) is not None]
    words = [phrase({_word(key): value}) for key, value in present[:MOST]]
    return ", ".join([*words, *([f"{len(present) - MOST} more settings"] if len(present) > MOST else [])])


def _word(key: str) -> str:
    """Return the short form of a key for a name: its last part, but the name of its section if that is ``shape``."""
    section, _, name = key.rpartition(".")
    return section if name == "shape" else name
