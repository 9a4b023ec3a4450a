"""What compression with error feedback has saved in a job, for the record; and the clients' model in checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any, Final

from thalweg import _core
from thalweg.outcome import Entry
from thalweg.record import checkpoint
from thalweg.tensors.arena import Arena
from thalweg.wire import Table

if TYPE_CHECKING:
    from thalweg.sections import CompressionSection

# In a server's state, the prefix of the names of tensors that belong to the clients' model.
HELD: Final = "compression/"


def facts(section: CompressionSection, rounds: Iterable[Entry]) -> Table:
    """Return the manifest's facts about compression: the scheme, bytes of updates, bytes on the wire, and their ratio.

    ``down`` has the same of models, if they are compressed. ``rounds`` are the journal's entries. A ratio is None if
    nothing was sent.
    """
    sums = {"up": [0, 0], "down": [0, 0]}
    for entry in rounds:
        for way in entry["transfers"]:
            if way["complete"]:
                plain, sent = sums[way["direction"]]
                sums[way["direction"]] = [plain + way["bytes"], sent + way["wire_bytes"]]
    (update, up), (model, down) = sums["up"], sums["down"]
    table: dict[str, object] = {
        "scheme": section.scheme,
        "update_bytes": update,
        "wire_bytes": up,
        "ratio": _ratio(update, up),
    }
    if section.down is not None:
        table["down"] = {
            "scheme": section.down,
            "model_bytes": model,
            "wire_bytes": down,
            "ratio": _ratio(model, down),
        }
    return table


def _ratio(plain: int, sent: int) -> float | None:
    return plain / sent if sent else None


def with_held(state: Arena | None, server: object) -> Arena | None:
    """Return a server's state for a checkpoint: that of its algorithm, and the clients' model if it keeps one."""
    held = server.held if isinstance(server, _core.Server) else None
    if held is None:
        return state
    parts = ([] if state is None else [("", state.core)]) + [(HELD, held)]
    return _copied((prefix + name, part, tensor) for prefix, part in parts for name, *tensor in part.layout.tensors)


def resumed(server: object, state: Arena | None) -> Arena | None:
    """Give a server the clients' model of a checkpoint's ``state``, if it has one; return the rest of the state.

    A server that does not compress models drops it.
    """
    tensors = [] if state is None else state.core.layout.tensors
    if state is None or not any(name.startswith(HELD) for name, *_ in tensors):
        return state
    held = _copied((name.removeprefix(HELD), state.core, rest) for name, *rest in tensors if name.startswith(HELD))
    if held is not None and isinstance(server, _core.Server):
        server.resume_held(held.core)
    return _copied((name, state.core, rest) for name, *rest in tensors if not name.startswith(HELD))


def _copied(tensors: Iterable[tuple[str, _core.Arena, list[Any]]]) -> Arena | None:
    """Return a copy of tensors, each with its new name, the arena that has it, and its type, shape and place there."""
    import numpy as np

    found = list(tensors)
    if not found:
        return None
    copy = Arena(_core.Arena(_core.Layout([(name, dtype, list(shape)) for name, _, (dtype, shape, _) in found])))
    target = np.asarray(copy.core)
    for (_, source, (dtype, shape, at)), (*_, place) in zip(found, copy.core.layout.tensors, strict=True):
        size = prod(shape) * checkpoint.BYTES[dtype]
        target[place : place + size] = np.asarray(source)[at : at + size]
    return copy
