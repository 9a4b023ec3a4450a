"""The server's part of an algorithm: what makes the next model of a round's mean.

The model before the round minus the mean of the clients' models serves as a gradient (Reddi et al. 2021, section 2). A
``Rule`` changes the model by it. A rule may have state, such as momentum; ``ServerStep.state`` returns it for the
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from thalweg import _core
from thalweg.errors import RoundError
from thalweg.outcome.core import Participant
from thalweg.tensors.arena import Arena, describe_array

if TYPE_CHECKING:
    from collections.abc import Iterable

# Values of one tensor in float32 or float64.
Values: TypeAlias = npt.NDArray[Any]
# Makes a rule. Its argument: the values that the rule changes in place.
MakeRule: TypeAlias = "Callable[[Sequence[Values]], Rule]"
# Returns the factor of a round's gradient. Its argument: the clients whose updates count.
Scale: TypeAlias = Callable[[Sequence[Participant]], float]


class Rule(Protocol):
    """An optimizer: changes a model's values in place by their gradients."""

    # The kind of rule, as checkpoints name it.
    name: str

    def step(self, gradients: Sequence[Values]) -> None:
        """Change the values by one gradient each, of the same shape and dtype."""

    def state(self) -> Mapping[str, Values]:
        """Return the arrays that the next step depends on, by name; empty if none."""

    def load(self, state: Mapping[str, Values]) -> None:
        """Take the state of an earlier rule of the same name. Raises KeyError or ValueError if it does not fit."""


class ServerStep:
    """Turns the mean of each round into the next model. It holds one copy of the model, and the rule's state.

    Values of float16 and bfloat16 are computed in float32. Tensors that no client trains, such as the statistics of
    BatchNorm, become their mean.
    """

    def __init__(self, arena: _core.Arena, names: Iterable[str], make: MakeRule, scale: Scale | None = None) -> None:
        """Prepare to change the tensors ``names`` in ``arena`` by the rule that ``make`` returns.

        ``scale`` computes the factor by which gradients are multiplied first.
        """
        self._arena, self._names = Arena(arena), list(names)
        self._values = [np.array(self._arena[name], _wide(self._arena[name].dtype)) for name in self._names]
        self._rule, self._scale = make(self._values), scale

    @property
    def name(self) -> str:
        """The name of the rule."""
        return self._rule.name

    def before(self) -> None:
        """Copy the model that clients are about to get. Called before each round."""
        for values, name in zip(self._values, self._names, strict=True):
            values[...] = self._arena[name]

    def after(self, participants: Sequence[Participant]) -> None:
        """Replace the mean in the arena by the next model. Called after each round.

        Raises RoundError if the next model has a value that is not finite, or if a client did not report what the
        algorithm needs. The arena then still has the mean.
        """
        gradients = [
            np.asarray(values - self._arena[name].astype(values.dtype))  # NumPy makes a number of an array of shape ()
            for values, name in zip(self._values, self._names, strict=True)
        ]
        if self._scale is not None:
            factor = self._scale([one for one in participants if one.counts])
            for gradient in gradients:
                np.multiply(gradient, factor, out=gradient)
        with np.errstate(all="ignore"):  # values that are not finite are refused below
            self._rule.step(gradients)
            results = [v.astype(self._arena[n].dtype) for v, n in zip(self._values, self._names, strict=True)]
        for name, result, values in zip(self._names, results, self._values, strict=True):
            if not np.isfinite(result.astype(values.dtype)).all():
                raise RoundError(
                    f"{self._rule.name} gives {name!r} values that are not finite",
                    "Lower algorithm.server_learning_rate, or the clients' learning rate",
                )
        for name, result in zip(self._names, results, strict=True):
            self._arena[name][...] = result

    def state_arrays(self) -> Mapping[str, Values]:
        """Return the arrays that the next step depends on, by name; empty if none."""
        return self._rule.state()

    def load_arrays(self, state: Mapping[str, Values]) -> None:
        """Load the arrays that ``state_arrays`` returned earlier. Raises KeyError or ValueError if they do not fit."""
        self._rule.load(state)

    def forget_clients(self) -> None:
        """Drop the state that only fits the state of earlier clients. Called if all clients are new."""

    def state(self) -> Arena | None:
        """Return a copy of ``state_arrays()`` for a checkpoint, with the rule's name in each key; None if empty."""
        arrays = {f"{self._rule.name}/{key}": np.asarray(value) for key, value in self.state_arrays().items()}
        if not arrays:
            return None
        arena = Arena(_core.Arena(_core.Layout([describe_array(name, array) for name, array in arrays.items()])))
        for name, array in arrays.items():
            arena[name][...] = array
        return arena

    def load(self, state: Arena | None) -> None:
        """Load the state of a checkpoint, which may have none. Raises RoundError if it is of another rule."""
        if state is None:
            return
        first, whole = f"{self._rule.name}/", dict(state)
        try:
            self.load_arrays({name.removeprefix(first): whole[name] for name in whole if name.startswith(first)})
            fits = all(name.startswith(first) for name in whole)
        except (KeyError, ValueError):
            fits = False
        if not fits:
            kind = next(iter(whole)).partition("/")[0]
            raise RoundError(
                f"the checkpoint has the state of {kind}, which {self._rule.name} for this model cannot take",
                "Resume with the algorithm or optimizer that the record was made with",
            )


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def positive_metric(participant: Participant, metric: str) -> float:
    """Return a metric of a client as a positive number. Raises RoundError, which names the client."""
    metrics = participant.metrics
    value = metrics.get(metric) if isinstance(metrics, Mapping) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value > 0:
        return float(value)
    raise RoundError(
        f"{participant.client} reports {metric} = {value!r}, and the algorithm needs a positive number",
        "Start each client with this version and the job's app",
    )


class ArrayState:
    """The state of a rule: for each name, such as "momentum_buffer", an array beside each of the values."""

    def __init__(self, values: Sequence[Values], **starts: float) -> None:
        """Make arrays of the shapes of ``values``. ``starts`` has their names, each with the number that fills them."""
        self.arrays = {name: [np.full_like(one, start) for one in values] for name, start in starts.items()}

    def __getitem__(self, name: str) -> list[Values]:
        return self.arrays[name]

    def state(self) -> dict[str, Values]:
        """Return the arrays by their names in a checkpoint."""
        return {f"{place}/{name}": one for name, ones in self.arrays.items() for place, one in enumerate(ones)}

    def load(self, state: Mapping[str, Values]) -> None:
        """Take arrays of the same names and shapes. Raises KeyError, ValueError."""
        own = self.state()
        if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in own):
            raise ValueError("another model")
        for name, array in own.items():
            array[...] = state[name]
