"""The broker of a run: none, one that the run starts and ends, or one that already runs at the plan's URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from thalweg.brokers import Broker, BrokerPlace, Tls, programs
from thalweg.brokers.base import BrokerFacts
from thalweg.errors import BrokerError, PlanError
from thalweg.machine import Usage
from thalweg.network.topology import SERVER
from thalweg.transports import links, registry
from thalweg.transports.links import Trust

if TYPE_CHECKING:
    from thalweg.job.common.session import Session
    from thalweg.plan import Plan

PARTY: Final = "broker"


@dataclass
class RunBroker:
    """A run's broker. ``url`` is where the server listens, ``trust`` what every party needs to log in at the broker.

    If the run has not started a broker itself, ``broker`` is None and ``trust`` is empty.
    """

    url: str
    broker: Broker | None = None
    trust: Trust = field(default_factory=Trust)

    def trusting(self, trust: Trust) -> Trust:
        """Return a party's ``trust`` with the broker's login, and with the broker's TLS settings if it has any."""
        return replace(trust, login=self.trust.login or trust.login, tls=self.trust.tls or trust.tls)

    def facts(self) -> dict[str, BrokerFacts]:
        """Return the manifest's facts: ``broker``, or nothing if the run has no broker of its own."""
        return {} if self.broker is None else {PARTY: self.broker.facts()}

    def reports(self) -> dict[str, Usage]:
        """Return the broker's row of the table ``parties``, by name."""
        return {} if self.broker is None else {PARTY: self.broker.usage()}


@contextmanager
def run_broker(plan: Plan, network: Session, trust: Trust, note: Callable[[str], None]) -> Iterator[RunBroker]:
    """Start a broker if the transport needs one and the plan names none; end it when the block ends.

    ``trust`` is the server's. ``note`` gets notes about the broker, also from another thread. Raises BrokerError, or
    PlanError if the plan names a broker outside of its emulated network.
    """
    if not registry.can(plan.scheme).broker:
        yield RunBroker(network.url)
        return
    if "://" in plan.transport.url:
        if network.lab is not None:
            raise PlanError(
                f"the broker {plan.url} is outside of the emulated network",
                f"Give transport.url = {plan.scheme!r}: the run then starts a broker inside the network",
            )
        yield RunBroker(plan.url)
        return
    brokers = programs(plan.scheme)
    program = next((program for program in brokers if program.find() is not None), None)
    if program is None:
        wanted = " or ".join(program.name for program in brokers)
        raise BrokerError(
            f"{plan.scheme} needs a broker, and {wanted} is not installed",
            f"Install it (as root: make system), or give a broker's address as {plan.scheme}://HOST:PORT",
        )
    # The broker runs on the network's host for brokers. If there is none, it runs on the server's host, as in FedComm.
    # It has no CPU quota.
    spec = network.spec
    party = SERVER if network.lab is None or spec is None else spec.broker_host
    place = BrokerPlace(network.address(party), network.namespace(party), network.groups.outside, party)
    with Broker(program, place, tls=_certificates(trust), on_event=note) as broker:
        note(f"{program.name} {program.version() or ''} is ready".replace("  ", " "))
        yield RunBroker(broker.url(plan.scheme), broker, _login(broker, trust))


def _certificates(trust: Trust) -> Tls | None:
    """Return the broker's certificate, which is the one made for the run's server; None without TLS."""
    if trust.tls is None or trust.tls.identity is None:
        return None
    return Tls(trust.tls.authority, trust.tls.identity.certificate, trust.tls.identity.key)


def _login(broker: Broker, trust: Trust) -> Trust:
    """Return the login and TLS settings of all parties. To the broker, the server is a client too."""
    tls = None
    if trust.tls is not None:
        tls = links.Tls(trust.tls.authority, None, require_client=False, server_name="localhost")
    return Trust(login=links.Login(broker.login.user, broker.login.password), tls=tls)
