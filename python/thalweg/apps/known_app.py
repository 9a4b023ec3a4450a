"""The app that ``thalweg run`` trains: a known model of images or text, on one of the known data sets.

It has the methods of any app: ``model()``, ``train(model, data, config)`` and ``evaluate(model, data)``. PyTorch is
imported by the first of these calls, not by this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from thalweg import data as datasets
from thalweg import extras, models
from thalweg.algorithms import fednova, scaffold
from thalweg.errors import PlanError
from thalweg.tensors.choosing import TRAINABLE

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from thalweg.data import Dataset, Text

SEED_END: Final = 1 << 63


class KnownApp:
    """One party's view of the job: FedComm's training (section IV.A) on its own part of the data.

    The defaults are FedComm's: SGD with momentum 0.9 that starts afresh each round, learning rate 0.01 and a tenth
    of it in rounds after ``decay_round``, batches of 100, one local epoch, or ``local_steps`` batches instead.
    """

    def __init__(
        self,
        *,
        model: str,
        data: str,
        partition: str,
        clients: int,
        client: int | None,
        seed: int,
        data_root: str | None,
        samples: int | None = None,
        test_samples: int | None = None,
        batch: int = 100,
        learning_rate: float = 0.01,
        momentum: float = 0.9,
        decay_round: int = 50,
        decay: float = 0.1,
        local_epochs: int = 1,
        local_steps: int | None = None,
        threads: int | None = None,
        proximal: float = 0.0,
    ) -> None:
        """Store the settings; nothing is loaded yet.

        ``client`` is 0..clients-1, or None for a server, which gets the whole training set. ``data_root`` is the folder
        of the data set. ``samples`` of the training set and ``test_samples`` of the test set are drawn with the seed;
        None takes all of the set. ``threads`` is the number of PyTorch's threads, for the whole process; None does not
        change it. ``proximal`` is mu of FedProx. Raises ModelError, DataError or PlanError for a setting that cannot
        work.
        """
        self._spec = models.find(model)
        self._data = datasets.find(data)
        datasets.check_reader(data, self._spec.name, self._spec.reads)
        datasets.parse_partition(partition)
        self._partition = partition
        self._clients = _at_least("clients", clients, 1)
        if client is not None and not 0 <= client < clients:
            raise PlanError(f"client {client} is not one of {clients}", f"Clients count from 0 to {clients - 1}")
        self._client = client
        if not 0 <= seed < SEED_END:
            raise PlanError(f"seed is {seed}", f"Give 0 to {SEED_END - 1}")
        self._seed = seed
        self._root = None if data_root is None else Path(data_root)
        self._samples = None if samples is None else _at_least("samples", samples, 1)
        self._test_samples = None if test_samples is None else _at_least("test_samples", test_samples, 1)
        self._batch = _at_least("batch", batch, 1)
        self._learning_rate = _positive("learning_rate", learning_rate)
        if not 0.0 <= momentum < 1.0:
            raise PlanError(f"momentum is {momentum}", "Give at least 0 and less than 1")
        self._momentum = momentum
        self._decay_round = _at_least("decay_round", decay_round, 0)
        self._decay = _positive("decay", decay)
        self._local_epochs = _at_least("local_epochs", local_epochs, 1)
        self._local_steps = None if local_steps is None else _at_least("local_steps", local_steps, 1)
        self._threads = None if threads is None else _at_least("threads", threads, 1)
        self._proximal = proximal
        #: What is added to each gradient, by the parameter's name, in float32; None for nothing.
        self.corrections: Mapping[str, NDArray[Any]] | None = None
        self._loaded: tuple[Dataset | Text, Dataset | Text] | None = None

    @property
    def tensors(self) -> list[str] | None:
        """The tensors that travel; None for all. If a model has adapters, only these are trained and travel."""
        return [TRAINABLE] if self._spec.rank else None

    def model(self) -> nn.Module:
        """Build the model. The same seed gives the same initial values in every process."""
        self._limit_threads()
        return models.build(self._spec.name, classes=datasets.CLASSES, seed=self._seed)

    def train_data(self) -> Dataset | Text:
        """Return this client's part of the training set, or all of it if there is no client number."""
        return self._load()[0]

    def test_data(self) -> Dataset | Text:
        """Return the test set, the same for every party."""
        return self._load()[1]

    def train(
        self, model: nn.Module, data: Dataset | Text, config: Mapping[str, object]
    ) -> tuple[int, dict[str, float]]:
        """Train in place for the round ``config["round"]`` (int, from 1); return (samples, metrics).

        Metrics: ``loss`` and ``train_accuracy`` (0..1), means over the epochs; with FedNova also the norm of the local
        steps. The result depends only on the model's values, the data, the seed, the client and the round.
        """
        from thalweg.algorithms import local_sgd

        number = _round(config)
        self._limit_threads()
        settings = local_sgd.LocalSGD(
            batch=self._batch,
            learning_rate=self.learning_rate(number),
            momentum=self._momentum,
            epochs=self._local_epochs,
            steps=self._local_steps,
            seed=self._round_seed(number),
            minimum_batch=self._spec.minimum_batch,
            proximal=self._proximal,
            corrections=self.corrections,
        )
        samples, steps, metrics = local_sgd.train_counting(model, data, settings)
        chosen = config.get("algorithm")
        if isinstance(chosen, Mapping) and chosen.get("name") == fednova.NAME:
            metrics[fednova.NORM] = fednova.norm(steps, self._momentum)
        if self.corrections is not None:
            metrics[scaffold.SPAN] = steps * settings.learning_rate
        return samples, metrics

    def evaluate(self, model: nn.Module, data: Dataset | Text) -> dict[str, float]:
        """Return ``accuracy`` (0..1) and ``loss`` (mean cross-entropy) of ``model`` on ``data``."""
        from thalweg.algorithms import local_sgd

        self._limit_threads()
        return local_sgd.evaluate(model, data)

    def learning_rate(self, number: int) -> float:
        """Return the learning rate of round ``number`` (from 1)."""
        return self._learning_rate * (self._decay if number > self._decay_round else 1.0)

    def _load(self) -> tuple[Dataset | Text, Dataset | Text]:
        if self._loaded is None:
            brings = datasets.PACKAGES.get(self._data)
            needs = [*self._spec.packages, *([] if brings is None else [brings])]
            extras.require(f"training {self._spec.name} on {self._data}", *needs)
            train, test = datasets.load_any(self._data, root=self._root)
            if self._samples is not None:
                train = train.subset(datasets.drawn(len(train), self._samples, self._seed))
            if self._test_samples is not None:
                chosen = datasets.drawn(len(test), self._test_samples, self._seed, key="data.test_samples")
                test = test.subset(chosen)
            if self._client is not None:
                parts = datasets.partition(train.labels, self._clients, self._partition, self._seed)
                train = train.subset(parts[self._client])
            self._loaded = train, test
        return self._loaded

    def _round_seed(self, number: int) -> int:
        import numpy as np

        client = 0 if self._client is None else self._client + 1
        return int(np.random.SeedSequence((self._seed, client, number)).generate_state(1, np.uint64)[0])

    def _limit_threads(self) -> None:
        if self._threads is not None:
            import torch

            torch.set_num_threads(self._threads)


def _round(config: Mapping[str, object]) -> int:
    number = config.get("round")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise PlanError(f"the round is {number!r}", "Give config['round'] as a whole number from 1")
    return number


def _at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise PlanError(f"{name} is {value}", f"Give {least} or more")
    return value


def _positive(name: str, value: float) -> float:
    if not 0.0 < value < float("inf"):
        raise PlanError(f"{name} is {value}", "Give a positive number")
    return value
