"""Updates over a long path that loses packets: Cubic to a kernel's receiver, Cubic to ``unifl``, and ``ltp``, by turns.

The path has 100 Mbit/s and an RTT of 40 ms. On the way up it loses packets at random, in front of its queue. Goodput is
the number of an update's bytes that arrived, divided by the time from its first byte to its last at the server,
start-up included. The ceiling is the most that the link carries (``thalweg.network.bound.carried``): rate x 1448/1500.
Losses do not lower it, because packets that are lost in front of the limit use none of its rate. Senders have the
buffers of the lab's hosts: at most four bandwidth-delay products, and at least 6 MiB.
"""

from __future__ import annotations

import statistics
from typing import Final

from benches.common import Figure, Spread, note
from benches.lossy import NetworkPath, Sent, Way, send, updates

UPDATE_MIB: Final = 24
REPEATS: Final = 5
LOSSES: Final = (0.0, 0.01)
# ltp repairs all losses here, because the receiver does not close transfers early.
WAYS: Final = {
    "kernel": Way("tcp", "cubic"),
    "unifl": Way("unifl", "cubic", "budget = 0.05"),
    "ltp": Way("ltp"),
}


def masking() -> list[Figure]:
    """Measure the goodput of both receivers at each loss rate, as a share of the ceiling."""
    sent: dict[tuple[str, float], list[Sent]] = {}
    for repeat in range(REPEATS):
        for loss in LOSSES:
            for name, way in WAYS.items():
                (one,) = updates(send(way, NetworkPath(loss=loss), UPDATE_MIB, seed=repeat), UPDATE_MIB)
                sent.setdefault((name, loss), []).append(one)
                note(f"{repeat + 1}/{REPEATS} {name} {loss:.0%}: {one.goodput / 1e6:.1f} Mbit/s")
    return [_figure({name: sent[name, loss] for name in WAYS}, NetworkPath(loss=loss)) for loss in LOSSES]


def _figure(sent: dict[str, list[Sent]], path: NetworkPath) -> Figure:
    shares = {name: [one.goodput / path.ceiling for one in ones] for name, ones in sent.items()}
    lost = [one.missing for one in sent["unifl"]]
    value = (
        f"{Spread.of(shares['unifl']).text(100)} % of the ceiling with {statistics.median(lost):.2%} missing, "
        f"a kernel's receiver {Spread.of(shares['kernel']).text(100)} %, ltp {Spread.of(shares['ltp']).text(100)} %"
    )
    name = f"masked update, Cubic, 100 Mbit/s, 40 ms, loss {path.loss:.0%}"
    reached = statistics.median(shares["unifl"]) >= 0.97
    return Figure(name, value, "97 %", reached, {**shares, "missing": lost})
