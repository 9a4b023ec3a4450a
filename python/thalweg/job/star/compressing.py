"""What compression with error feedback has saved in a job, for the record."""

from __future__ import annotations

from collections.abc import Iterable

from thalweg.outcome import Entry
from thalweg.wire import Table


def facts(scheme: str, rounds: Iterable[Entry]) -> Table:
    """Return the manifest's facts about compression: the scheme, bytes of updates, bytes on the wire, and their ratio.

    ``rounds`` are the journal's entries. ``ratio`` is None if no update was sent.
    """
    plain = sent = 0
    for entry in rounds:
        for way in entry["transfers"]:
            if way["direction"] == "up" and way["complete"]:
                plain, sent = plain + way["bytes"], sent + way["wire_bytes"]
    return {"scheme": scheme, "update_bytes": plain, "wire_bytes": sent, "ratio": plain / sent if sent else None}
