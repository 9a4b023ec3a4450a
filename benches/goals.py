"""The goals of a loss-tolerant transport at 700 Mbit/s and 40 ms with unmodified kernel senders. All ways take turns.

Goodput is that of whole updates, start-up included, as a share of the link's ceiling (see ``masking``). Except for
incast, senders' buffers hold 32 MiB. The transfer of an update of 240 MB spends a twelfth of its time on start-up. The
goals were first measured over 8 s, so updates of that duration are sent too. Where loss makes kernel receivers slow,
their updates are smaller, because their rate does not depend on the size.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from benches.common import MIB, Figure, Spread, note
from benches.lossy import FULL, NetworkPath, Sent, Way, send, updates

REPEATS: Final = 5
# More repetitions for critical tensors: their cost is small beside the variation of start-up.
PAIRS: Final = 9
CONTROLS: Final = ("cubic", "reno", "bbr")
UPDATE_MIB: Final = 228  # 240 MB
LONG_MIB: Final = 3 * UPDATE_MIB  # 8 s
SMALL_MIB: Final = 8
TENSORS: Final = 10
TENSORS_MIB: Final = 230
LOSS: Final = 0.01
RATE: Final = 700e6
# Buffer of a sender at this rate. If a retransmission is lost and sent again, the sender must keep five bandwidth-delay
# products.
SEND_BUFFER: Final = "32MiB"
MASKED: Final = "budget = 0.05"
PATH: Final = NetworkPath(RATE, loss=LOSS, send_buffer=SEND_BUFFER)
# Incast, as in UniFL: each worker has a link of its own, and all share one link to the server.
WORKERS: Final = 8
ROUNDS: Final = 200
SHARED: Final = 400e6
INCAST: Final = NetworkPath(100e6, ("15ms", "25ms"), LOSS, shared=SHARED)
INCAST_MIB: Final = 4


def goals() -> list[Figure]:
    """Measure single flows of each congestion control, whole updates, critical tensors and incast."""
    return [*_flows(), *_whole(), *_long(), _critical(), _incast()]


def _repeated(ways: dict[str, tuple[Way, NetworkPath, int]]) -> dict[str, list[Sent]]:
    """Send an update in each way, alternately, ``REPEATS`` times."""
    updates_by_way: dict[str, list[Sent]] = {name: [] for name in ways}
    for repeat in range(REPEATS):
        for name, (way, path, mib) in ways.items():
            (one,) = updates(send(way, path, mib, seed=repeat), mib)
            updates_by_way[name].append(one)
            note(f"{repeat + 1}/{REPEATS} {name}: {one.goodput / 1e6:.1f} Mbit/s, {one.missing:.2%} missing")
    return updates_by_way


def _flows() -> list[Figure]:
    clean, lossy = (replace(PATH, loss=loss) for loss in (0.0, LOSS))
    ways = {f"masked {cc} {path.loss:.0%}": (Way("unifl", cc, MASKED), path, UPDATE_MIB)
            for cc in CONTROLS for path in (clean, lossy)}  # fmt: skip
    ways["kernel cubic 0%"] = (Way("tcp", "cubic"), clean, UPDATE_MIB)
    ways["kernel cubic 1%"] = (Way("tcp", "cubic"), lossy, SMALL_MIB)
    sent = _repeated(ways)
    figures = []
    for cc in CONTROLS:
        for path in (clean, lossy):
            ones = sent[f"masked {cc} {path.loss:.0%}"]
            figures += [_share(f"masked, {cc}, 700 Mbit/s, 40 ms, loss {path.loss:.0%}", ones, path, 0.97)]
            figures += [_excess(f"lost beyond the link's, {cc}, loss {path.loss:.0%}", ones, path.loss)]
    return [*figures, _start(sent["masked cubic 0%"]), *_beside_kernel(sent)]


def _start(ones: Sequence[Sent]) -> Figure:
    starts = [one.started for one in ones]
    value = f"{Spread.of(starts).text(digits=3)} s from the first byte to {FULL:.0%} of the link's rate"
    return Figure("start-up, masked, Cubic, 700 Mbit/s, 40 ms", value, "0.35 s", statistics.median(starts) <= 0.35,
                  {"seconds": starts})  # fmt: skip


def _share(name: str, ones: Sequence[Sent], path: NetworkPath, least: float) -> Figure:
    shares = [one.goodput / path.ceiling for one in ones]
    value = f"{Spread.of(shares).text(100)} % of the ceiling"
    return Figure(name, value, f"{least:.0%}", statistics.median(shares) >= least, {"shares": shares})


def _excess(name: str, ones: Sequence[Sent], loss: float) -> Figure:
    excess = [one.missing - loss for one in ones]
    value = f"{Spread.of(excess).text(100, 3)} % of the update"
    return Figure(name, value, "0.05 %", statistics.median(excess) <= 0.0005, {"excess": excess})


def _beside_kernel(sent: dict[str, list[Sent]]) -> list[Figure]:
    def median(name: str) -> float:
        return statistics.median(one.goodput for one in sent[name])

    lossy, clean = (median(f"masked cubic {loss}") / median(f"kernel cubic {loss}") for loss in ("1%", "0%"))
    return [
        Figure("masked over a kernel's receiver, Cubic, loss 1%", f"{lossy:.0f} times", "100 times", lossy >= 100),
        Figure("masked over a kernel's receiver, Cubic, no loss", f"{clean:.3f}", "0.99", clean >= 0.99),
    ]


def _whole() -> list[Figure]:
    """Measure updates without missing bytes: masked ranges are resent at the end, or TCP retransmits each hole."""
    asked = {f"every byte, masked and asked for again, {cc}": (Way("unifl", cc, MASKED, resend=True), PATH, UPDATE_MIB)
             for cc in CONTROLS}  # fmt: skip
    repaired = {f"every byte, each hole repaired by TCP, {cc}":
                (Way("unifl", cc, "budget = 0"), PATH, UPDATE_MIB) for cc in CONTROLS}  # fmt: skip
    return [_share(f"{name}, loss 1%", ones, PATH, 0.90) for name, ones in _repeated(asked | repaired).items()]


def _long() -> list[Figure]:
    """Measure goodput with and without missing bytes again with updates of 8 s, the duration that the goals assume."""
    ways = {cc: Way("unifl", cc, MASKED) for cc in CONTROLS}
    long = {f"masked, {cc}, {LONG_MIB} MiB": (way, PATH, LONG_MIB) for cc, way in ways.items()}
    asked = {f"every byte, {name}": (replace(way, resend=True), path, mib) for name, (way, path, mib) in long.items()}
    least = dict.fromkeys(long, 0.97) | dict.fromkeys(asked, 0.90)
    return [_share(f"{name}, loss 1%", ones, PATH, least[name]) for name, ones in _repeated(long | asked).items()]


def _critical() -> Figure:
    """Measure the additional time of an update if a tenth of its bytes is critical."""
    way = Way("unifl", "cubic", MASKED)
    some = replace(way, repair='critical = ["payload.4"]')
    over = []
    for repeat in range(PAIRS):
        runs = [send(one, PATH, TENSORS_MIB, seed=repeat, tensors=TENSORS) for one in (way, some)]
        (without,), (with_it,) = (updates(run, TENSORS_MIB) for run in runs)
        over.append(with_it.seconds / without.seconds - 1)
        note(f"{repeat + 1}/{PAIRS} a tenth critical: {over[-1]:+.2%} of time")
    value = f"{Spread.of(over).text(100, 2)} % more time"
    name = f"one tensor of {TENSORS} critical, Cubic, 700 Mbit/s, 40 ms, loss 1%"
    return Figure(name, value, "1 %", statistics.median(over) <= 0.01, {"over": over})


def _incast() -> Figure:
    """Measure rounds of eight workers. A round takes as long as its slowest update."""
    way = Way("unifl", "cubic", MASKED)
    run = send(way, INCAST, INCAST_MIB, clients=WORKERS, rounds=ROUNDS)
    ups = [row for row in run.transfers if row.direction == "up"]
    slowest: dict[int, float] = {}
    for row, one in zip(ups, updates(run, INCAST_MIB), strict=True):
        slowest[row.round] = max(slowest.get(row.round, 0.0), one.seconds)
    ideal = WORKERS * INCAST_MIB * MIB * 8 / min(INCAST.shared_ceiling, WORKERS * INCAST.ceiling)
    over = [seconds / ideal for seconds in slowest.values()]
    spread = Spread.of(over)
    outliers = sum(one > 1.25 * spread.median for one in over)
    value = f"{spread.text(digits=2)} of the ideal {ideal:.2f} s in {len(over)} rounds; {outliers} above 1.25 medians"
    name = f"incast of {WORKERS} workers, Cubic, {INCAST_MIB} MiB, 100 Mbit/s, 30 to 50 ms, loss 1%, 400 Mbit/s shared"
    reached = spread.median <= 1.10 and outliers == 0
    return Figure(name, value, "1.10, no outlier", reached, {"over_ideal": over})
