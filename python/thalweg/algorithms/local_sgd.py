"""Local training and evaluation of a classifier or language model (FedAvg's client step, FedComm section IV.A).

Parameters and buffers are changed in place and never replaced, because they may be views of the arena that is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thalweg.data.dataset import Dataset
from thalweg.data.text import Text
from thalweg.data.transform import batch
from thalweg.errors import DataError
from thalweg.training_progress import report_progress

# FedComm's batch size for evaluation. On a CPU the activations of larger batches do not fit the cache: a batch size of
# 500 takes twice as long.
EVALUATION_BATCH: Final = 100


@dataclass(frozen=True)
class LocalSGD:
    """Settings of one client's training in one round. ``seed`` decides the order of samples, the crops and the dropout.

    With ``steps`` it trains on that many batches, in as many passes over the data as necessary; else in ``epochs``
    passes. ``proximal`` is mu of FedProx: each gradient gets mu times the parameter's distance from where it began.
    ``corrections``, by parameter name, are added to the gradients, as SCAFFOLD does.
    """

    batch: int
    learning_rate: float
    momentum: float
    epochs: int
    seed: int
    minimum_batch: int = 1
    steps: int | None = None
    proximal: float = 0.0
    corrections: Mapping[str, NDArray[Any]] | None = None


class MomentumSGD:
    """Stochastic gradient descent with momentum: v <- momentum * v + gradient, p <- p - learning_rate * v, in place.

    It takes the same steps as ``torch.optim.SGD``. The first use of that imports PyTorch's compiler, which takes every
    client process more than a second. With ``proximal`` the gradient is that of FedProx (Li et al. 2020, equation 2).
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], learning_rate: float, momentum: float, proximal: float = 0.0
    ) -> None:
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._proximal = proximal
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._pairs = [(parameter, torch.zeros_like(parameter)) for parameter in trained]
        self._starts = [parameter.detach().clone() for parameter in trained] if proximal else []

    @torch.no_grad()
    def step(self) -> None:
        """Change each parameter that has a gradient."""
        for (parameter, _), start in zip(self._pairs, self._starts, strict=False):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - start, alpha=self._proximal)
        for parameter, velocity in self._pairs:
            if parameter.grad is not None:
                velocity.mul_(self._momentum).add_(parameter.grad)
                parameter.add_(velocity, alpha=-self._learning_rate)

    def drop_gradients(self) -> None:
        """Forget the gradients and free their memory."""
        for parameter, _ in self._pairs:
            parameter.grad = None


def train(model: nn.Module, data: Dataset | Text, settings: LocalSGD) -> tuple[int, dict[str, float]]:
    """Train ``model`` on ``data`` and return (samples in ``data``, metrics).

    The momentum of the optimiser begins at 0. The metrics are ``loss`` (cross-entropy) and ``train_accuracy`` (0..1):
    means over all samples trained on (for text over all tokens), where each batch is measured before its step. Raises
    DataError if ``data`` is smaller than the smallest batch the model can train on.
    """
    samples, _, metrics = train_counting(model, data, settings)
    return samples, metrics


def train_counting(model: nn.Module, data: Dataset | Text, settings: LocalSGD) -> tuple[int, int, dict[str, float]]:
    """Train as ``train`` does; return (samples in ``data``, steps, metrics). Raises DataError."""
    if len(data) < max(settings.minimum_batch, 1):
        raise DataError(
            f"{len(data)} samples are too few: this model trains on batches of {settings.minimum_batch} or more",
            "Take fewer clients or another partition",
        )
    optimiser = MomentumSGD(model.parameters(), settings.learning_rate, settings.momentum, settings.proximal)
    generator = torch.Generator().manual_seed(settings.seed)
    added = settings.corrections or {}
    corrections = [(p, torch.from_numpy(added[name])) for name, p in model.named_parameters() if name in added]
    loss_sum, correct, seen, steps = 0.0, 0, 0, 0
    total = _steps(len(data), settings)
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        for chosen in _all_batches(len(data), settings, generator):
            inputs, labels = batch(data, chosen, generator)
            batch_loss, batch_correct = _step(model, optimiser, inputs, labels, corrections)
            loss_sum += batch_loss * labels.numel()
            correct += batch_correct
            seen += labels.numel()
            steps += 1
            report_progress(steps / total)
    optimiser.drop_gradients()
    return len(data), steps, {"loss": loss_sum / seen, "train_accuracy": correct / seen}


def evaluate(model: nn.Module, data: Dataset | Text) -> dict[str, float]:
    """Return ``accuracy`` (0..1) and ``loss`` (mean cross-entropy) on ``data``, neither augmented nor shuffled.

    For text both are means over tokens. Afterwards the model is in the same mode (training or evaluation) as before.
    Raises DataError if ``data`` is empty.
    """
    if len(data) == 0:
        raise DataError(f"{data.name} has no samples to evaluate on", "Give at least one sample")
    was_training = model.training
    model.eval()
    loss_sum, correct, seen = 0.0, 0, 0
    with torch.no_grad():
        for start in range(0, len(data), EVALUATION_BATCH):
            inputs, labels = batch(data, slice(start, start + EVALUATION_BATCH), None)
            logits = _logits(model, inputs)
            loss_sum += cross_entropy(logits, labels.flatten(), reduction="sum").item()
            correct += _count_correct(logits, labels)
            seen += labels.numel()
    model.train(was_training)
    return {"accuracy": correct / seen, "loss": loss_sum / seen}


def _all_batches(samples: int, settings: LocalSGD, generator: torch.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield the batches of a round: those of all ``epochs``, or ``steps`` batches from as many epochs as necessary."""
    epochs = range(settings.epochs) if settings.steps is None else count()
    yield from islice((chosen for _ in epochs for chosen in _batches(samples, settings, generator)), settings.steps)


def _steps(samples: int, settings: LocalSGD) -> int:
    """Return how many batches ``_all_batches`` yields."""
    return settings.epochs * (1 + len(_cuts(samples, settings))) if settings.steps is None else settings.steps


def _cuts(samples: int, settings: LocalSGD) -> list[int]:
    """Return the indices at which batches of an epoch begin. A last batch that is too small joins the one before."""
    size = max(settings.batch, settings.minimum_batch)
    cuts = list(range(size, samples, size))
    if cuts and samples - cuts[-1] < settings.minimum_batch:
        cuts.pop()
    return cuts


def _batches(samples: int, settings: LocalSGD, generator: torch.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield shuffled batches of indices."""
    order = torch.randperm(samples, generator=generator).numpy()
    yield from np.split(order, _cuts(samples, settings))


def _step(
    model: nn.Module,
    optimiser: MomentumSGD,
    inputs: Tensor,
    labels: Tensor,
    corrections: Sequence[tuple[nn.Parameter, Tensor]],
) -> tuple[float, int]:
    optimiser.drop_gradients()
    logits = _logits(model, inputs)
    loss = cross_entropy(logits, labels.flatten())
    torch.autograd.backward(loss)
    for parameter, correction in corrections:
        if parameter.grad is not None:
            parameter.grad.add_(correction)
    optimiser.step()
    return loss.item(), _count_correct(logits, labels)


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return a row of logits for each label. Models of ``transformers`` return an object with the logits in it."""
    output = model(inputs)
    logits: Tensor = getattr(output, "logits", output)
    return logits.flatten(0, -2)


def _count_correct(logits: Tensor, labels: Tensor) -> int:
    return int((logits.argmax(1) == labels.flatten()).sum().item())
