"""Turns a batch of samples into a network's input. Images are cropped at random, mirrored and normalised.

These are the steps of FedComm section IV.A. The result is float32 of shape (batch, 3, 32, 32), channels-last in memory:
PyTorch's CPU convolutions are about a quarter faster with that layout, for any layout of the weights.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from thalweg.data.dataset import Dataset, Images, Labels
from thalweg.data.text import Text

PADDING: Final = 4


def batch(data: Dataset | Text, chosen: Labels | slice, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of the samples whose indices are ``chosen``.

    For images: the result of ``prepare``, and labels int64 (batch,). For text: tokens, and for each token the next one,
    both int64 (batch, window).
    """
    if isinstance(data, Text):
        tokens = torch.from_numpy(data.tokens[chosen].astype("int64"))
        return tokens[:, :-1], tokens[:, 1:]
    return prepare(data, data.images[chosen], generator), torch.from_numpy(data.labels[chosen].copy())


def prepare(data: Dataset, images: Images, generator: torch.Generator | None) -> Tensor:
    """Turn ``images`` (uint8, shape (batch, 3, 32, 32), of ``data``) into normalised float32 of the same shape.

    With a ``generator`` and ``data.augment`` each image is cropped at random, and mirrored if ``data.flip``.
    """
    pixels = torch.from_numpy(images.copy())
    if generator is not None and data.augment:
        pixels = crop_and_flip(pixels, generator, flip=data.flip)
    return normalise(pixels, data.mean, data.std)


def crop_and_flip(images: Tensor, generator: torch.Generator, *, flip: bool) -> Tensor:
    """Shift each image (batch, channels, height, width) by -4..4 pixels on black; mirror half of them if ``flip``.

    This is a random crop of the original size out of the image padded by 4 on every side.
    """
    count, _, height, width = images.shape
    top = torch.randint(2 * PADDING + 1, (count, 1), generator=generator)
    left = torch.randint(2 * PADDING + 1, (count, 1), generator=generator)
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    if flip:
        mirrored = torch.rand(count, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    padded = pad(images, (PADDING,) * 4)
    # If index arrays stand on both sides of a slice, NumPy puts the indexed axes first: here (batch, height, width).
    picked = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (images / 255 - mean) / std for each channel, float32, channels-last in memory."""
    scaled = images.to(torch.float32, memory_format=torch.channels_last)
    offset = torch.tensor(mean, dtype=torch.float32).mul_(255).view(1, -1, 1, 1)
    factor = torch.tensor(std, dtype=torch.float32).mul_(255).reciprocal_().view(1, -1, 1, 1)
    return scaled.sub_(offset).mul_(factor)
