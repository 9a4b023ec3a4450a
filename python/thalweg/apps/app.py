"""What a user's app has to have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class App(Protocol):
    """The user's model and its training. A model is a ``torch.nn.Module``, or a dict of NumPy arrays.

    An app may also have ``evaluate(model, data) -> metrics``, ``test_data()``, ``client_data(name, index, clients,
    seed)`` or ``train_data()``, and ``tensors``; docs/how-to/own-model.md describes them.
    """

    def model(self) -> Any:
        """Return a new model.

        The shapes are the same at every party; the server's values are the first global model.
        """

    def train(self, model: Any, data: Any, config: Mapping[str, object]) -> tuple[int, dict[str, Any]]:
        """Train ``model`` in place on ``data``; ``config`` has the round's number and the server's values.

        Return the number of samples (the weight of the update) and metrics for the record.
        """
