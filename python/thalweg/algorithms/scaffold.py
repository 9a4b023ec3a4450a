"""SCAFFOLD: each client corrects its gradients by how they differ, on average, from those of all clients.

The server has a control variate c, each client i has its own c_i, and all begin as 0. A control variate is in the arena
beside the model. So c travels with the model, and c plus the change of c_i travels with the update. The mean of what
clients send is then c plus the mean change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final

import numpy as np

from thalweg import _core
from thalweg.algorithms import fedavgm
from thalweg.algorithms.algorithm import NEEDS_SERVER, Algorithm
from thalweg.algorithms.server_step import MakeRule, Rule, ServerStep, Values
from thalweg.algorithms.settings import Settings, required
from thalweg.errors import MetricsError
from thalweg.outcome.core import Participant
from thalweg.tensors.arena import Arena

SETTINGS: Final[Settings] = {"server_learning_rate": 1.0}
#: Prefix of the control variates' names in the arena.
CONTROL: Final = "thalweg_scaffold/"
# In a checkpoint: the prefix of the names of the rule's state, and that of the server's control variates.
RULE: Final = "rule/"
OWN: Final = "control/"
#: The metric in which a client reports the number of its steps times its learning rate.
SPAN: Final = "scaffold_span"


class Step(ServerStep):
    """Moves the model to the clients' mean, and c by the mean change times the share of clients that took part."""

    def __init__(self, arena: _core.Arena, names: Iterable[str], make: MakeRule, clients: int) -> None:
        """``clients`` is the job's number of clients. The control variate begins as 0; ``load`` sets it otherwise."""
        super().__init__(arena, names, make)
        self._clients = clients
        self._tensors = Arena(arena)
        self._controls = [np.zeros_like(self._tensors[CONTROL + name]) for name in self._names]

    def before(self) -> None:
        """Copy the model before the round, and write the server's control variate to the arena."""
        super().before()
        for name, control in zip(self._names, self._controls, strict=True):
            self._tensors[CONTROL + name][...] = control

    def after(self, participants: Sequence[Participant]) -> None:
        """Replace the mean by the next model and the next control variate. Raises RoundError."""
        super().after(participants)
        share = sum(one.counts for one in participants) / self._clients
        for name, control in zip(self._names, self._controls, strict=True):
            np.add(control, share * (self._tensors[CONTROL + name] - control), out=control)

    def state_arrays(self) -> dict[str, Values]:
        """Return the rule's state and the control variates, with names that begin with ``RULE`` and ``OWN``."""
        rule = {f"{RULE}{key}": value for key, value in super().state_arrays().items()}
        return rule | {f"{OWN}{name}": control for name, control in zip(self._names, self._controls, strict=True)}

    def load_arrays(self, state: Mapping[str, Values]) -> None:
        """Take the state of an earlier step. Raises KeyError or ValueError if it does not fit."""
        controls = [state[OWN + name] for name in self._names]
        rule = {key.removeprefix(RULE): value for key, value in state.items() if key.startswith(RULE)}
        if len(rule) + len(controls) != len(state):
            raise ValueError("another model")
        super().load_arrays(rule)
        for own, control in zip(self._controls, controls, strict=True):
            if own.shape != control.shape:
                raise ValueError("another model")
            own[...] = control

    def forget_clients(self) -> None:
        """Set the server's control variates to 0, because those of new clients are 0.

        The server's variate must be the mean of the clients'. Both only change by the same amounts, so a difference
        would stay for ever, and would be added to each gradient.
        """
        for control in self._controls:
            control[...] = 0


class Control:
    """A client's control variate. It lives as long as the client's process."""

    def __init__(self, arena: Arena, names: Sequence[str]) -> None:
        self._arena, self._names = arena, names
        self._own: list[Values] = [np.zeros_like(arena[name]) for name in names]
        self._start: list[Values] = []

    def corrections(self) -> dict[str, Values]:
        """Copy the received model; return by tensor name the correction to add to each gradient: c - c_i."""
        self._start = [self._arena[name].copy() for name in self._names]
        pairs = zip(self._names, self._own, strict=True)
        return {name: np.asarray(self._arena[CONTROL + name] - own) for name, own in pairs}

    def finish(self, metrics: Mapping[str, object]) -> None:
        """Update c_i <- c_i - c + (x - y) / (steps * learning rate), and add its change to c in the arena.

        x is the received model, y the trained one.

        Raises MetricsError if the training does not say how many steps it took.
        """
        span = metrics.get(SPAN)
        if not isinstance(span, (int, float)) or not 0 < span < inf:
            raise MetricsError(
                f"train() returned {SPAN} = {span!r}, and scaffold divides by it",
                "Return the number of local steps times the learning rate",
            )
        for name, own, start in zip(self._names, self._own, self._start, strict=True):
            received = self._arena[CONTROL + name]
            change = (start - self._arena[name]) / span - received
            np.add(own, change, out=own)
            np.add(received, change, out=received)


def rule(values: Sequence[Values], settings: Settings) -> Rule:
    """Return the server's rule."""
    return fedavgm.SGD(values, required(settings, "server_learning_rate"))


ALGORITHM: Final = Algorithm(
    name="scaffold",
    meaning=(
        "each client corrects its gradients by the difference of two control variates, its own and everybody's, so "
        "that clients with different data do not drift apart; models and updates are twice as large, and all clients "
        "count alike"
    ),
    source="Karimireddy et al. 2020, algorithm 1 with option II",
    refused=NEEDS_SERVER,
    settings=SETTINGS,
    rule=rule,
    step=Step,
    own_apps="an app of one's own takes its own steps, and each of them has to be corrected",
    beside=CONTROL,
)
