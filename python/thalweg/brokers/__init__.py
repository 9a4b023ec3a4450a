"""Brokers that a run starts for itself: which there are for which transport."""

from __future__ import annotations

from typing import Final

from thalweg.brokers.base import Broker, Launch, Login, Place, Program, Sign, Site, Tls
from thalweg.brokers.mosquitto import Mosquitto
from thalweg.brokers.rabbitmq import RabbitMq

__all__ = ["Broker", "Launch", "Login", "Place", "Program", "Sign", "Site", "Tls", "programs"]

# By scheme, in the order they are tried: the first that is installed is taken.
_PROGRAMS: Final[dict[str, tuple[Program, ...]]] = {"amqp": (RabbitMq(),), "mqtt": (Mosquitto(),)}


def programs(scheme: str) -> tuple[Program, ...]:
    """Return the broker programs that a transport's messages can go through."""
    return _PROGRAMS.get(scheme, ())
