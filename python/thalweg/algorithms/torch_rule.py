"""A server's ``Rule`` made of any ``torch.optim.Optimizer``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from thalweg import extras
from thalweg.algorithms.server_step import Values
from thalweg.errors import PlanError

if TYPE_CHECKING:
    import torch

# Makes an optimizer for the model's trained tensors, which are in the model's order.
MakeOptimizer: TypeAlias = "Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]"


class TorchRule:
    """Changes values by an optimizer of PyTorch. The optimizer's parameters share the memory of the values.

    A checkpoint keeps the tensors and numbers of ``optimizer.state_dict()["state"]``, but no settings such as the
    learning rate.
    """

    def __init__(self, values: Sequence[Values], make: MakeOptimizer) -> None:
        """Make the optimizer. Raises PlanError if ``make`` returns none, or one that needs a closure; PackageError."""
        extras.require("an optimizer of PyTorch at the server", "torch")
        import torch

        self._parameters = [torch.nn.Parameter(torch.from_numpy(one)) for one in values]
        self._optimizer = make(self._parameters)
        if not isinstance(self._optimizer, torch.optim.Optimizer):
            raise PlanError(
                f"the optimizer is a {type(self._optimizer).__name__}",
                "Give a function that makes one: lambda parameters: torch.optim.Adam(parameters, lr=0.1)",
            )
        self.name = type(self._optimizer).__name__
        closure = inspect.signature(self._optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise PlanError(
                f"{self.name} computes the loss several times in a step, and a round gives one gradient",
                "Take another optimizer, as torch.optim.Adam",
            )

    def step(self, gradients: Sequence[Values]) -> None:
        import torch

        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient)
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None

    def state(self) -> Mapping[str, Values]:
        state: dict[str, Values] = {}
        for place, kept in self._optimizer.state_dict()["state"].items():
            for name, value in kept.items():
                if value is not None:
                    state[f"{place}/{name}"] = _array(self.name, name, value)
        return state

    def load(self, state: Mapping[str, Values]) -> None:
        import torch

        kept: dict[int, dict[str, Any]] = {}
        for key, array in state.items():
            place, _, name = key.partition("/")
            value = torch.from_numpy(np.array(array))
            if value.numel() > 1 and value.shape != self._parameters[int(place)].shape:
                raise ValueError(f"{key} has the shape of another model")
            kept.setdefault(int(place), {})[name] = value
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": kept})


def _array(optimizer: str, name: str, value: Any) -> Values:
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, (int, float)):
        return np.array(value)
    raise PlanError(
        f"{optimizer} keeps a {type(value).__name__} as {name}, which no checkpoint can have",
        "Take another optimizer, or a server without a record",
    )
