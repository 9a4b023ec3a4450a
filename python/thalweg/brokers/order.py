"""The order of a broker's supervisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thalweg.lab import inside


@dataclass(frozen=True)
class SupervisorOrder:
    """Which broker to run: its command, environment, folder and place, and the seconds that it gets to end."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    place: inside.ProcessPlace
    grace: float
