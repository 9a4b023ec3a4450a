"""Measures how a sender whose loss is masked and an ordinary sender share a link in the steady state."""

from __future__ import annotations

from typing import Final

from benches.common import Figure, Spread, note
from benches.lossy import NetworkPath, Way, send
from experiments.senders import Sample, Watch, while_sending

REPEATS: Final = 5
PATH: Final = NetworkPath(100e6, everybody="cubic")
# At half of the link's rate an update takes 5 s. Only its second half is measured.
UPDATE_MIB: Final = 32
MOST: Final = 0.60


def beside() -> list[Figure]:
    """Measure a flow of masked Cubic beside one of Cubic to a kernel's receiver, on a link without random loss."""
    shares = []
    for repeat in range(REPEATS):
        watch = Watch(rivals=1)
        watch.start()
        try:
            send(Way("unifl", "cubic", "budget = 0.05"), PATH, UPDATE_MIB, seed=repeat)
        finally:
            samples = watch.stop()
        if watch.failure is not None:
            raise RuntimeError(f"the senders were not watched: {watch.failure}")
        shares.append(settled(samples["samples"], str(samples["rivals"][0])))
        note(f"{repeat + 1}/{REPEATS} masked beside Cubic: {shares[-1]:.1%} of what both get")
    spread = Spread.of(shares)
    name = f"masked Cubic's share beside a kernel's Cubic, {UPDATE_MIB} MiB, 100 Mbit/s, 40 ms, second half"
    reached = spread.median <= MOST
    return [Figure(name, f"{spread.text(100)} % of both", f"at most {MOST:.0%}", reached, {"shares": shares})]


def settled(samples: list[Sample], rival: str) -> float:
    """Return the update's share of all bytes acknowledged during the second half of its transfer."""
    rows = while_sending(samples, [rival])
    middle = (rows[0][0] + rows[-1][0]) / 2
    (_, ours, before), (_, ours_then, after) = next(row for row in rows if row[0] >= middle), rows[-1]
    mine, other = (
        late["bytes_acked"] - early["bytes_acked"] for early, late in ((ours, ours_then), (before[rival], after[rival]))
    )
    return mine / (mine + other)
