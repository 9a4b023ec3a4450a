"""A masked sender beside an ordinary one: what each takes of the link that they share, once both have settled."""

from __future__ import annotations

from typing import Final

from benches.common import Figure, Spread, note
from benches.lossy import Road, Way, send
from experiments.senders import Sample, Watch, while_sending

REPEATS: Final = 5
ROAD: Final = Road(100e6, everybody="cubic")
# At half of the link's rate it is under way for 5 s, of which the second half counts.
UPDATE_MIB: Final = 32
MOST: Final = 0.60


def beside() -> list[Figure]:
    """Masked Cubic and Cubic to a kernel's receiver, one of each, on a link that loses nothing of its own."""
    shares = []
    for repeat in range(REPEATS):
        watch = Watch(rivals=1)
        watch.start()
        try:
            send(Way("unifl", "cubic", "budget = 0.05"), ROAD, UPDATE_MIB, seed=repeat)
        finally:
            found = watch.stop()
        if watch.failure is not None:
            raise RuntimeError(f"the senders were not watched: {watch.failure}")
        shares.append(settled(found["samples"], str(found["rivals"][0])))
        note(f"{repeat + 1}/{REPEATS} masked beside Cubic: {shares[-1]:.1%} of what both get")
    spread = Spread.of(shares)
    name = f"masked Cubic's share beside a kernel's Cubic, {UPDATE_MIB} MiB, 100 Mbit/s, 40 ms, second half"
    reached = spread.median <= MOST
    return [Figure(name, f"{spread.text(100)} % of both", f"at most {MOST:.0%}", reached, {"shares": shares})]


def settled(samples: list[Sample], rival: str) -> float:
    """Return the update's share of what both had acknowledged in the second half of its time."""
    rows = while_sending(samples, [rival])
    middle = (rows[0][0] + rows[-1][0]) / 2
    (_, ours, before), (_, ours_then, after) = next(row for row in rows if row[0] >= middle), rows[-1]
    mine, other = (
        late["bytes_acked"] - early["bytes_acked"] for early, late in ((ours, ours_then), (before[rival], after[rival]))
    )
    return mine / (mine + other)
