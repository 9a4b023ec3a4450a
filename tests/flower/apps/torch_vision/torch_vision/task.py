"""CIFAR-10 in partitions, a small convolutional network, and how it is trained and tested."""

from __future__ import annotations

import torch
from datasets import load_dataset
from flwr_datasets import FederatedDataset
from flwr_datasets.partitioner import IidPartitioner
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms import Compose, Normalize, ToTensor

DATASET = "uoft-cs/cifar10"
TRANSFORM = Compose([ToTensor(), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])


class Net(nn.Module):
    """Two convolutions with batch normalisation, whose counters of batches are integers, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 5), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 5), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(16 * 5 * 5, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).flatten(1))


def transformed(batch):
    batch["img"] = [TRANSFORM(image) for image in batch["img"]]
    return batch


def load(partition: int, partitions: int, batch_size: int, seed: int) -> tuple[DataLoader, DataLoader]:
    """Return a client's batches for training, shuffled by ``seed``, and for testing: a fifth of its partition."""
    federated = FederatedDataset(dataset=DATASET, partitioners={"train": IidPartitioner(partitions)})
    split = federated.load_partition(partition).train_test_split(test_size=0.2, seed=42).with_transform(transformed)
    order = torch.Generator().manual_seed(seed)
    training = DataLoader(split["train"], batch_size=batch_size, shuffle=True, generator=order)
    return training, DataLoader(split["test"], batch_size=batch_size)


def load_test(batch_size: int) -> DataLoader:
    """Return the test images that the server evaluates with."""
    return DataLoader(load_dataset(DATASET, split="test").with_transform(transformed), batch_size=batch_size)


def train(net: nn.Module, batches: DataLoader, epochs: int, learning_rate: float) -> float:
    """Train by SGD with momentum and return the mean loss of a batch."""
    optimiser = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for batch in batches:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(batch["img"]), batch["label"])
            loss.backward()
            optimiser.step()
            total += loss.item()
    return total / (epochs * len(batches))


def test(net: nn.Module, batches: DataLoader) -> tuple[float, float]:
    """Return the mean loss of a batch, and the share of images that the network gets right."""
    net.eval()
    right, total, loss = 0, 0, 0.0
    with torch.no_grad():
        for batch in batches:
            found = net(batch["img"])
            loss += nn.functional.cross_entropy(found, batch["label"]).item()
            right += (found.argmax(1) == batch["label"]).sum().item()
            total += len(batch["label"])
    return loss / len(batches), right / total
