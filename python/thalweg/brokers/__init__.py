"""The broker programs that a run can start for a transport."""

from __future__ import annotations

from typing import Final

from thalweg.brokers.base import Broker, BrokerPlace, Launch, Login, Program, Sign, Site, Tls
from thalweg.brokers.mosquitto import Mosquitto
from thalweg.brokers.rabbitmq import RabbitMq

__all__ = ["Broker", "BrokerPlace", "Launch", "Login", "Program", "Sign", "Site", "Tls", "programs"]

# By the transport's scheme. A run takes the first that is installed.
_PROGRAMS: Final[dict[str, tuple[Program, ...]]] = {"amqp": (RabbitMq(),), "mqtt": (Mosquitto(),)}


def programs(scheme: str) -> tuple[Program, ...]:
    """Return the broker programs that can carry the messages of the transport ``scheme``."""
    return _PROGRAMS.get(scheme, ())
