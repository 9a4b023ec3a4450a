"""Shows rounds while they run: on a terminal a bar for each round and client, else one line for each round."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from thalweg import _core, wire
from thalweg.ui import terminal
from thalweg.ui.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID
    from rich.table import Column

    from thalweg.outcome import Entry

SHOWN_CLIENTS: Final = 8
# Widths of columns of bars, in characters: names, which may be longer, bars, and times as 0:00:00.
MOST_NAME: Final = 24
BAR_WIDTH: Final = 20
TIME_WIDTH: Final = 7
# Maximum length of a line, in bytes.
LONGEST: Final = 4096
# The phase in which a client trains, as the core names it.
TRAINING: Final = "training"
FINAL_PHASES: Final = ("whole", "partial", "rejected", "lost", "late")


class Progress(Protocol):
    """Shows the progress of a job."""

    # Whether ``trained`` has an effect.
    shows_training: bool

    def note(self, text: str) -> None:
        """Show a line."""

    def begin(self, number: int, rounds: int | None) -> None:
        """Begin a round. ``rounds`` is how many there will be, or None if that is not known."""

    def observe(self, state: str) -> None:
        """Show the state of the clients: JSON from the core, several times a second."""

    def trained(self, client: str, number: int, fraction: float) -> None:
        """Show that a client has done this fraction of its training in round ``number``. Any thread may call this."""

    def end(self, entry: Entry) -> None:
        """Show a round that has ended, from its journal entry."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def progress_on_stderr() -> Progress:
    """Return bars if standard error is a terminal, else lines."""
    return Bars() if sys.stderr.isatty() else LineProgress()


def round_line(entry: Entry, rounds: int | None) -> str:
    """Return one line about a round. ``rounds`` is how many there will be, or None if that is not known."""
    accuracy = "" if entry["accuracy"] is None else f"accuracy {100 * entry['accuracy']:.2f} %, "
    if not accuracy and entry["loss"] is not None:
        accuracy = f"loss {entry['loss']:.4g}, "
    if (of_clients := entry.get("client_accuracy")) is not None:
        accuracy += f"clients' own accuracy {100 * of_clients:.2f} %, "
    elif (of_clients := entry.get("client_loss")) is not None:
        accuracy += f"clients' own loss {of_clients:.4g}, "
    whole = "".join(f", {words}" for words in missing_words(entry)) + ("" if entry["complete"] else ", incomplete")
    return (
        f"{_numbered('round', entry['round'], rounds)}: {accuracy}{format_seconds(entry['seconds'])} "
        f"(communication {format_seconds(entry['communication_seconds'])}), "
        f"{format_bytes(entry['bytes_down'])} down, {format_bytes(entry['bytes_up'])} up, "
        f"{entry['participants']} of {entry['expected']} clients{whole}"
    )


def _numbered(word: str, number: int, total: int | None) -> str:
    return f"{word} {number}" if total is None else f"{word} {number}/{total}"


def iteration_line(entry: Entry, rounds: int | None) -> str:
    """Return one line about an iteration of all nodes of a graph, from the journal's entry."""
    nodes = list(entry["nodes"].values())
    quality = "" if entry["accuracy"] is None else f"accuracy {100 * entry['accuracy']:.2f} %, "
    if not quality and entry["loss"] is not None:
        quality = f"loss {entry['loss']:.4g}, "
    expected = sum(node["chunks_expected"] for node in nodes)
    used = 100 * sum(node["chunks_used"] for node in nodes) / expected if expected else 100.0
    apart = "" if entry.get("disagreement") is None else f", disagreement {entry['disagreement']:.2g}"
    return (
        f"{_numbered('iteration', entry['round'], rounds)}: {quality}{format_seconds(entry['seconds'])} "
        f"(exchange {format_seconds(entry['communication_seconds'])}), {format_bytes(entry['bytes_up'])} sent, "
        f"{used:.3g} % of chunks, {entry['participants']} of {entry['expected']} nodes{apart}"
    )


def missing_words(entry: Entry) -> list[str]:
    """Return which fractions of a round's updates and models are missing, as texts such as ``10 % missing``."""
    ways = (("up", "missing"), ("down", "of the model missing"))
    return [f"{share} {words}" for direction, words in ways if (share := missing_share(entry, direction))]


def missing_share(entry: Entry, direction: str) -> str:
    """Return the fraction of a round's updates (``up``) or models (``down``) that is missing, or "" if none is."""
    ways = [transfer for transfer in entry["transfers"] if transfer["direction"] == direction]
    missing = sum(transfer.get("missing") or 0 for transfer in ways)
    return f"{100 * missing / (missing + sum(transfer['bytes'] or 0 for transfer in ways)):.2g} %" if missing else ""


class LineProgress:
    """Shows one line for each round."""

    shows_training = False

    def __init__(self) -> None:
        self._rounds: int | None = None

    def note(self, text: str) -> None:
        # The job continues if the reader of standard error has closed the pipe.
        with suppress(OSError):
            sys.stderr.write(f"{_core.plain_text(text, LONGEST)}\n")
            sys.stderr.flush()

    def begin(self, number: int, rounds: int | None) -> None:
        self._rounds = rounds

    def observe(self, state: str) -> None:
        pass

    def trained(self, client: str, number: int, fraction: float) -> None:
        pass

    def end(self, entry: Entry) -> None:
        self.note(round_line(entry, self._rounds))

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class _Client:
    """A client's phase of the round, and the fraction of its model or update that was sent."""

    phase: str
    sent_fraction: float | None = None


@dataclass(frozen=True)
class _State:
    """The state of a round, as the core reports it."""

    clients: Mapping[str, _Client]


def _one_line(make: type[Column], most: int) -> Column:
    """Return a column of at most so many characters, whose longer texts are cut."""
    return make(no_wrap=True, overflow="ellipsis", max_width=most)


class Bars:
    """Shows a bar for the round and one for each of the first clients; the other clients are counted by phase.

    A bar is how much of its present phase a client has done: of its training, or of sending its update. A client
    reports its training if it runs on this machine (``thalweg.training_progress``).
    """

    shows_training = True

    def __init__(self, console: Console | None = None) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        console = console or terminal.console(stderr=True)
        # Each row is one line: what is longer than its column ends with an ellipsis. Between columns is one space.
        phase_width = max(MOST_NAME, console.width - MOST_NAME - BAR_WIDTH - TIME_WIDTH - 3)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False, table_column=_one_line(Column, MOST_NAME)),
            BarColumn(bar_width=BAR_WIDTH),
            TextColumn("{task.fields[phase]}", markup=False, table_column=_one_line(Column, phase_width)),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._rounds: int | None = None
        self._number = 0
        self._round: TaskID | None = None
        # The fraction of its training that a client has done in a round, by the client's name.
        self._trained: dict[str, tuple[int, float]] = {}
        self._clients: dict[str, TaskID] = {}

    def note(self, text: str) -> None:
        self._bars.console.print(_core.plain_text(text, LONGEST), highlight=False, markup=False)

    def begin(self, number: int, rounds: int | None) -> None:
        self._rounds, self._number = rounds, number
        self._bars.start()
        self._clear()
        self._round = self._bars.add_task(_numbered("round", number, rounds), total=1.0, phase="sending the model")

    def observe(self, state: str) -> None:
        clients = wire.decode(_State, state).clients
        for name, client in list(clients.items())[:SHOWN_CLIENTS]:
            if name not in self._clients:
                self._clients[name] = self._bars.add_task(f"  {name}", total=1.0, phase="")
            done = self._done(name, client)
            phase = f"{client.phase} {100 * done:.0f} %" if client.phase == TRAINING and done else client.phase
            self._bars.update(self._clients[name], completed=done, phase=phase)
        if self._round is not None and clients:
            mean = sum(self._done(*one) for one in clients.items()) / len(clients)
            counts = Counter(client.phase for client in clients.values())
            phases = ", ".join(f"{count} {phase}" for phase, count in counts.most_common())
            self._bars.update(self._round, completed=mean, phase=phases)

    def trained(self, client: str, number: int, fraction: float) -> None:
        self._trained[client] = (number, fraction)

    def _done(self, name: str, client: _Client) -> float:
        if client.phase == TRAINING:
            number, fraction = self._trained.get(name, (0, 0.0))
            return fraction if number == self._number else 0.0
        return 1.0 if client.phase in FINAL_PHASES else client.sent_fraction or 0.0

    def end(self, entry: Entry) -> None:
        self.note(round_line(entry, self._rounds))

    def refresh(self) -> None:
        """Draw at once, instead of at the next of several redraws a second."""
        self._bars.refresh()

    def close(self) -> None:
        self._clear()
        self._bars.stop()

    def _clear(self) -> None:
        for task in [*self._clients.values(), *([] if self._round is None else [self._round])]:
            self._bars.remove_task(task)
        self._clients = {}
        self._round = None
