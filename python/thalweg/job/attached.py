"""The broker of a run: none, one of its own that ends with it, or one that somebody else runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from thalweg.brokers import Broker, Place, Tls, programs
from thalweg.errors import BrokerError, PlanError
from thalweg.network.topology import SERVER
from thalweg.transports import registry

if TYPE_CHECKING:
    from thalweg.job.session import Session
    from thalweg.plan import Plan

PARTY: Final = "broker"


@dataclass
class Attached:
    """A run's broker. ``url`` is where the server listens, ``trust`` what parties are told besides."""

    url: str
    broker: Broker | None = None
    trust: Mapping[str, Any] = field(default_factory=dict)

    def trusting(self, trust: Mapping[str, Any]) -> dict[str, Any]:
        """Return a party's trust with what the broker asks for."""
        return {**trust, **self.trust}

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says of it: ``broker``, or nothing if the run has none of its own."""
        return {} if self.broker is None else {PARTY: self.broker.facts()}

    def reports(self) -> dict[str, dict[str, Any]]:
        """Return its row of the parties, by name."""
        return {} if self.broker is None else {PARTY: self.broker.use()}


@contextmanager
def attached(
    plan: Plan, network: Session, trust: Mapping[str, Any], heard: Callable[[str], None]
) -> Iterator[Attached]:
    """Start the broker that a run needs, if it names none; at the end nothing of it is left.

    ``trust`` is that of the server; ``heard`` gets what happens to the broker, from a thread of its own. Raises
    BrokerError, or PlanError for a broker that cannot be reached from the plan's network.
    """
    if not registry.can(plan.scheme)["broker"]:
        yield Attached(network.url)
        return
    if "://" in plan.transport.url:
        if network.lab is not None:
            raise PlanError(
                f"the broker {plan.url} is outside of the emulated network",
                f"Give transport.url = {plan.scheme!r}: the run then starts a broker within it",
            )
        yield Attached(plan.url)
        return
    found = programs(plan.scheme)
    program = next((program for program in found if program.find() is not None), None)
    if program is None:
        wanted = " or ".join(program.name for program in found)
        raise BrokerError(
            f"{plan.scheme} needs a broker, and {wanted} is not installed",
            f"Install it (as root: make system), or give a broker's address as {plan.scheme}://HOST:PORT",
        )
    # With the server, as FedComm has it, if the network has no host for it; not within what processors are limited to.
    spec = network.spec
    party = SERVER if network.lab is None or spec is None else spec.broker_host
    place = Place(network.address(party), network.namespace(party), network.groups.outside, party)
    with Broker(program, place, tls=_certificates(trust), heard=heard) as broker:
        heard(f"{program.name} {program.version() or ''} is ready".replace("  ", " "))
        yield Attached(broker.url(plan.scheme), broker, _told(broker, trust))


def _certificates(trust: Mapping[str, Any]) -> Tls | None:
    """Return what the broker shows: the certificate that was made for the run's server."""
    tls = trust.get("tls")
    if tls is None:
        return None
    return Tls(tls["authority"], tls["identity"]["certificate"], tls["identity"]["key"])


def _told(broker: Broker, trust: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all parties are told: to the broker the server is a client too."""
    told: dict[str, Any] = {"login": {"user": broker.login.user, "password": broker.login.password}}
    tls = trust.get("tls")
    if tls is not None:
        told["tls"] = {
            "authority": tls["authority"],
            "identity": None,
            "require_client": False,
            "server_name": "localhost",
        }
    return told
