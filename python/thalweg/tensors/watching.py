"""Runs an app's training and evaluation on a bound model, and puts the model and its arena in order around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from thalweg.ui.phrases import listed
from thalweg.ui.units import format_bytes

if TYPE_CHECKING:
    from thalweg.tensors.binding import Binding

Note = Callable[[str], None]
T = TypeVar("T")


def ignore(_text: str) -> None:
    """Ignore a note."""


class Watch:
    """Keeps a model's tensors in its arena around training and evaluation. It notes each kind of problem once."""

    def __init__(self, bound: Binding, note: Note) -> None:
        self._bound = bound
        self._note = note
        self._reported: set[str] = set()
        staying = bound.unreported()
        if staying:
            note(_staying(staying))
        unpinned = bound.unpinned()
        if unpinned is not None:
            note(f"the arena is not pinned, so copies from and to {', '.join(bound.devices)} are slower: {unpinned}")

    def train(self, work: Callable[[Any], T]) -> T:
        """Let ``work`` train the model, starting from the arena's values; then copy moved tensors back into the arena.

        Raises ModelError.
        """
        # The app begins while values are still copied to an accelerator: the device orders its work behind the copies.
        self._bound.restore("the last round", wait=False)
        before = self._bound.sample()
        result = work(self._bound.model)
        moved = self._bound.collect("train()")
        if moved:
            self._once("moved", self._moved_by("train()", moved))
        elif before and self._bound.sample() == before:
            self._once(
                "unchanged",
                f"train() changed none of the {format_bytes(len(before))} of the model that were compared. "
                "If it trains a copy, let it train the model that it is given",
            )
        return result

    def evaluate(self, work: Callable[[Any], T]) -> T:
        """Let ``work`` evaluate the model with the arena's values. Tensors that it moves use the arena again after it.

        Raises ModelError.
        """
        self._restore("the round")
        result = work(self._bound.model)
        self._restore("evaluate()")
        return result

    def _restore(self, when: str) -> None:
        moved = self._bound.restore(when)
        if moved:
            self._once(f"restored {when}", f"{when} had moved {_named(moved)}; the arena's values stand")

    def _moved_by(self, what: str, moved: Sequence[str]) -> str:
        size = format_bytes(len(self._bound.arena.core))
        return (
            f"{what} moved {_named(moved)} out of the arena, and they are copied back: up to {size} in each round. "
            "To save that, train in place: p.copy_() instead of p.data = ..., load_state_dict() without assign, "
            "model.to(device) in model()"
        )

    def _once(self, key: str, text: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            self._note(text)


def _named(names: Sequence[str]) -> str:
    return repr(names[0]) if len(names) == 1 else f"{len(names)} tensors ({names[0]!r} and others)"


def _staying(names: Sequence[str]) -> str:
    return (
        f"these entries of the model's state_dict() do not travel, each party keeps its own: {listed(names)}. "
        f"Make them parameters or buffers, or say that they stay at home: tensors = {f'!{names[0]}'!r}"
    )
