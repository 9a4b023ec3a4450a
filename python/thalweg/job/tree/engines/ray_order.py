"""Messages between a run and the process that uses Ray."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.job.common.messages import Order


@dataclass(frozen=True, kw_only=True)
class RayOrder(Order):
    """The order of Ray's process. The orders of its ``count`` nodes follow on its standard input, a line each.

    ``cluster`` is the address of a cluster to join; without one Ray starts in ``folder``. ``wait`` is how many seconds
    to wait for machines with ``cores`` free CPUs each, and ``restarts`` how often Ray starts a node again.
    """

    count: int
    cores: float
    cluster: str | None
    wait: float
    restarts: int | None
    folder: str


@dataclass(frozen=True, slots=True)
class RayPlace:
    """Where Ray runs a node: the machine's address, and Ray's name of it."""

    address: str
    ray_node: str
