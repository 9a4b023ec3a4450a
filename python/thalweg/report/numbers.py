"""The numbers of a run, for the page's tables and plots and for ``--json``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from thalweg.apps.metrics import checked_usage
from thalweg.plan.bound import Bound
from thalweg.record.facts import Facts
from thalweg.record.rows import Link, Party, Transfer
from thalweg.report.graphs import graph
from thalweg.report.senders import congestion, default_congestion, named_congestion
from thalweg.report.settings import settings
from thalweg.report.source import Run, json_object
from thalweg.report.split import splits
from thalweg.report.values import (
    BuildNumbers,
    LinkNumbers,
    MachineNumbers,
    PartyNumbers,
    RoundNumbers,
    RunNumbers,
    Spread,
    members,
)
from thalweg.sections.network import LinkSection
from thalweg.transports import links, registry
from thalweg.transports.registry import Capabilities
from thalweg.ui.phrases import exactly, phrase
from thalweg.ui.units import format_rate

if TYPE_CHECKING:
    from thalweg.plan import Plan

LINK_KEYS: Final = frozenset(LinkSection.model_fields) - {"profile"}
# Parts of a network that its name mentions without their settings.
KEPT_LOST: Final = "losses not resent"
PARTS: Final = ("clients", "bottleneck", "links", "changes", "trace")


def numbers(run: Run, setting: str = "") -> RunNumbers:
    """Return a run's numbers. ``setting``: the other settings in which its plan differs from those of the other runs.

    Sizes are in bytes, times in seconds, rates in bits a second; None if a number is unknown.
    """
    each = rounds(run)
    machine, build = run.manifest.part("machine"), run.manifest.part("thalweg")
    return RunNumbers(
        label=run.label,
        record=str(run.path),
        status=run.status,
        reason=run.reason if run.status == "failed" else None,
        started=run.manifest.text("started"),
        shape=run.shape,
        algorithm=run.algorithm,
        model=run.plan.label,
        clients=run.plan.job.clients,
        seed=run.plan.job.seed,
        system=run.system,
        transport=transport(run),
        congestion_control=congestion(run),
        unasked_congestion_control=default_congestion(run),
        network=network(run),
        repair=repair(run),
        setting=setting,
        emulation=run.emulation,
        emulation_reason=run.manifest.part("network").text("reason"),
        rounds=len(each),
        rounds_planned=run.plan.job.rounds,
        accuracy=last(each, lambda row: row.accuracy),
        loss=last(each, lambda row: row.loss),
        client_accuracy=last(each, lambda row: row.client_accuracy),
        client_loss=last(each, lambda row: row.client_loss),
        best_accuracy=max((row.accuracy for row in each if row.accuracy is not None), default=None),
        seconds=spread(row.seconds for row in each),
        communication_seconds=spread(row.communication_seconds for row in each),
        fedcomm_communication_seconds=spread(row.fedcomm_communication_seconds for row in each),
        goodput_bits_per_second=spread(row.goodput_bits_per_second for row in each),
        bound_seconds=spread(row.bound_seconds for row in each),
        share_of_bound=spread(row.share_of_bound for row in each),
        bound_source=run.manifest.part("bound").text("source"),
        bytes_down=total(row.bytes_down for row in each),
        bytes_up=total(row.bytes_up for row in each),
        retransmissions=retransmissions(run),
        machine=MachineNumbers(
            cpu=machine.text("cpu"),
            cores=machine.whole("cores"),
            memory_bytes=machine.whole("memory_bytes"),
            kernel=run.manifest.text("kernel"),
        ),
        thalweg=BuildNumbers(build.text("version"), build.text("commit")),
        graph=graph(run),
        each_round=each,
        links=[link(row) for row in run.links],
        parties=parties(run),
    )


def last(each: Sequence[RoundNumbers], of: Callable[[RoundNumbers], float | None]) -> float | None:
    """Return the number of the last round that has one; None if there is no such round."""
    return next((value for row in reversed(each) if (value := of(row)) is not None), None)


def rounds(run: Run) -> list[RoundNumbers]:
    """Return a row for each round, in order.

    ``elapsed_seconds`` is the sum so far, ``bound`` the least communication.
    """
    transfers: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in run.transfers:
        transfers[transfer.round].append(transfer)
    bound, parts = bound_of(run), splits(run)
    elapsed: float | None = 0.0
    least_elapsed: float | None = 0.0
    rows = []
    for row in sorted(run.rounds, key=lambda row: row.round):
        seconds, communication = row.seconds, row.communication_seconds
        moved = payload(transfers[row.round])
        least = None if bound is None or moved is None else bound.seconds(*moved)
        bits = None if moved is None else 8.0 * (moved[0] + moved[1])
        elapsed = add(elapsed, seconds)
        least_elapsed = add(least_elapsed, add(add(seconds, communication, -1.0), least))
        rows.append(
            RoundNumbers(
                round=row.round,
                accuracy=row.accuracy,
                loss=row.loss,
                client_accuracy=row.client_accuracy,
                client_loss=row.client_loss,
                seconds=seconds,
                elapsed_seconds=elapsed,
                communication_seconds=communication,
                compute_seconds=row.compute_seconds,
                split=parts.get(row.round),
                fedcomm_seconds=row.fedcomm_seconds,
                fedcomm_communication_seconds=row.fedcomm_communication_seconds,
                bound_seconds=least,
                bound_elapsed_seconds=least_elapsed,
                share_of_bound=divided(least, communication),
                goodput_bits_per_second=divided(bits, communication),
                bytes_down=row.bytes_down,
                bytes_up=row.bytes_up,
                participants=row.participants,
                expected=row.expected,
                complete=row.complete,
            )
        )
    return rows


def payload(transfers: Sequence[Transfer]) -> tuple[int, int, int] | None:
    """Return the bytes of updates down and up, and the number of their links; None if transfers were not recorded."""
    if not transfers:
        return None
    down, up = (sum(t.bytes or 0 for t in transfers if t.direction == way) for way in ("down", "up"))
    return down, up, len({transfer.client for transfer in transfers})


def bound_of(run: Run) -> Bound | None:
    """Return the lower bound in the manifest, or None."""
    bound = run.manifest.part("bound")
    source = bound.text("source")
    if source is None:
        return None
    return Bound(
        source,
        link_bits_per_second=bound.number("link_bits_per_second"),
        total_bytes_per_second=bound.number("total_bytes_per_second"),
        round_seconds=bound.number("round_seconds"),
        round_bytes=bound.whole("round_bytes"),
    )


def transport(run: Run) -> str:
    """Return the transport with its congestion control, such as ``tcp cubic``, even if the system chose that.

    For a run of another system, its name is in place of the transport.
    """
    if run.system is not None:
        return " ".join(filter(None, (run.system, congestion(run))))
    return transport_of(run.plan, tls=run.manifest.is_true("tls"), congestion=congestion(run))


def transport_of(plan: Plan, *, tls: bool | None = None, congestion: str | None = None) -> str:
    """Return a plan's transport with its congestion control, such as ``tcp cubic``.

    ``tls``: whether links were encrypted, None if only the plan says so.
    ``congestion``: the congestion control of the senders, None for the one in the plan.
    """
    section, encrypted = plan.transport, plan.security.tls == "on" if tls is None else tls
    words = [plan.scheme, congestion or named_congestion(plan) or "", "tls" if encrypted else ""]
    words += [f"{section.streams} streams" if section.streams > 1 else ""]
    words += [plan.layers.format or plan.compression.scheme or ""]
    words += [f"down {plan.compression.down}" if plan.compression.down else ""]
    words += ["" if plan.layers.seal is None else f"sealed {plan.layers.seal.cipher}"]
    return " ".join(word for word in words if word)


def repair(run: Run) -> str:
    """Return the text that lost bytes are not all resent; "" if they are."""
    return repair_of(run.plan)


def repair_of(plan: Plan) -> str:
    """Return the text that lost bytes are not all resent, for a plan; "" if they are."""
    return "" if plan.repair.resend else KEPT_LOST


def network(run: Run) -> str:
    """Return the text on the network, such as ``wifi``, ``60.0 Mbit/s a link`` or ``loopback``."""
    local = links.is_local(run.manifest.text("address") or "")
    return _network(run.plan, run.manifest.part("network"), local=local)


def network_of(plan: Plan) -> str:
    """Return the text that describes the network of a plan that is run on this machine."""
    section = plan.network
    emulated = section is not None and section.emulator != "none"
    return _network(
        plan, Facts({"profile": section.profile, "topology": section.topology} if section and emulated else {})
    )


def _network(plan: Plan, facts: Facts, *, local: bool = True) -> str:
    """Return the text on the links, and on the graph over them, if there was one."""
    links_of = _links(plan, facts, local=local)
    return links_of if plan.job.graph is None else f"{links_of}, graph {plan.job.graph}"


def _links(plan: Plan, facts: Facts, *, local: bool) -> str:
    if facts:
        profile, topology = facts.text("profile"), facts.text("topology")
        words = [profile] if profile else []
        words = words + _set(plan) or ["own values"]
        words += [topology] if topology not in (None, "star") else []
        return ", ".join(words)
    layers = plan.layers
    words = [] if layers.throttle is None else [f"{exactly(format_rate(layers.throttle))} a link"]
    if layers.fault is not None:
        faults = layers.fault.model_dump(exclude_defaults=True)
        words += [_fault(name, value) for name, value in faults.items()] or ["faults"]
    return ", ".join(words) or ("loopback" if local else "real network")


def _fault(name: str, value: float) -> str:
    return f"{name.removesuffix('_ms')} {value:g} ms" if name.endswith("_ms") else phrase({name: value})


def _set(plan: Plan) -> list[str]:
    """Return the text on the plan's settings of all links, and on the other parts of its network."""
    section = plan.network
    values = {} if section is None else section.model_dump(exclude_none=True, exclude_unset=True)
    keys = phrase({name: value for name, value in values.items() if name in LINK_KEYS})
    return [*([keys] if keys else []), *(name for name in PARTS if values.get(name))]


def link(row: Link) -> LinkNumbers:
    """Return a direction of a link with the fractions that it lost, and its configured shape as an object."""
    return LinkNumbers(
        row,
        json_object(row.nominal),
        lost_share=divided(row.lost, row.packets_in),
        queue_drop_share=divided(row.queue_drops, row.packets_in),
    )


def parties(run: Run) -> list[PartyNumbers]:
    """Return the resource usage of each party. Without the table of parties it is what clients reported."""
    if run.parties:
        return [PartyNumbers(row, json_object(row.stress) or None) for row in run.parties]
    peaks: dict[str, int] = {}
    for part in run.participants:
        # Older records have usage among the metrics.
        peak = checked_usage(json_object(part.usage or part.metrics))[0].get("peak_rss_bytes")
        if peak is not None:
            peaks[part.client] = max(peak, peaks.get(part.client, 0))
    return [PartyNumbers(Party(party=name, peak_rss_bytes=peak), None) for name, peak in sorted(peaks.items())]


def retransmissions(run: Run) -> int | None:
    """Return the segments retransmitted in a run; None unless the counts of all senders are known.

    Senders count them until the last transfer is confirmed (``resent`` in the manifest). If that is incomplete, the
    emulated hosts may have counted all of them. The sum over transfers is no substitute: it lacks the segments that
    were counted after the last round.
    """
    resent, can = run.manifest.part("resent"), _can(run)
    counts = [resent.whole("down"), resent.whole("up")]
    if resent.whole("first") == 1 and None not in counts and not (can and can.broker):
        return total(counts)
    return _sent_again_by_hosts(run)


def _sent_again_by_hosts(run: Run) -> int | None:
    """Return the segments that all emulated hosts retransmitted, if all traffic of the job uses their kernels' TCP."""
    resent, can = run.manifest.part("resent"), _can(run)
    first = resent.whole("first") if "first" in resent else 1
    is_whole = run.status == "complete" and first == 1 and run.manifest.whole("resumed_after_round") is None
    is_tcp = can is not None and can.retransmissions and can.congestion
    if not (is_whole and is_tcp and run.emulation.startswith("packet")):
        return None
    # A broker without a host of its own runs on another host, whose count includes it.
    away = {"broker"} - {run.manifest.part("broker").text("party")}
    counts = [row.retransmitted_segments for row in run.parties if row.party not in away]
    return None if None in counts else total(counts)


def _can(run: Run) -> Capabilities | None:
    """Return the capabilities of a run's transport; None if this build does not know it."""
    return next((one.capabilities for one in registry.transports() if one.name == run.plan.scheme), None)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return count, minimum, median and maximum of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(len(known), min(known), median(known), max(known))


def total(values: Iterable[int | None]) -> int | None:
    """Return the sum of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def add(one: float | None, other: float | None, factor: float = 1.0) -> float | None:
    """Return ``one`` + ``factor`` * ``other``, or None if either is unknown."""
    return None if one is None or other is None else one + factor * other


def divided(one: float | None, other: float | None) -> float | None:
    """Return ``one`` / ``other``, or None if either is unknown or ``other`` is 0."""
    return None if one is None or not other else one / other


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: the facts in which runs differ, then part of the record's name if those are equal."""
    if len(runs) <= 1:
        return [run.label for run in runs]
    facts = [
        (run.plan.label, members(run.plan.job.clients, run.shape), transport(run), network(run), repair(run), setting)
        for run, setting in zip(runs, settings([run.plan for run in runs]), strict=True)
    ]
    columns = [column for column in range(len(facts[0])) if len({fact[column] for fact in facts}) > 1]
    names = [", ".join(fact[column] for column in columns if fact[column]) for fact in facts]
    names = _told_apart(names, [run.label.rpartition("-")[2] for run in runs])
    return _told_apart(names, [str(number) for number in range(1, len(runs) + 1)])


def _told_apart(names: Sequence[str], by: Sequence[str]) -> list[str]:
    pairs = zip(names, by, strict=True)
    return [name if name and names.count(name) == 1 else f"{name} {mark}".strip() for name, mark in pairs]
