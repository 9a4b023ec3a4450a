"""From bytes to what a network eats: random crop, mirror, normalise, a batch at a time (FedComm section IV.A).

Images leave as float32 of shape (batch, 3, 32, 32), laid out channels-last in memory: PyTorch's CPU convolutions
run about a quarter faster on that, whatever the layout of the weights.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from thalweg.data.dataset import Dataset, Images

PADDING: Final = 4


def prepare(data: Dataset, images: Images, generator: torch.Generator | None) -> Tensor:
    """Turn ``images`` (uint8, shape (batch, 3, 32, 32), of ``data``) into normalised float32 of the same shape.

    With a ``generator`` and ``data.augment`` each image is cropped at random, and mirrored if ``data.flip``.
    """
    batch = torch.from_numpy(images.copy())
    if generator is not None and data.augment:
        batch = crop_and_flip(batch, generator, flip=data.flip)
    return normalise(batch, data.mean, data.std)


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
    # Indices around a slice put the indexed axes first: (batch, height, width, channels).
    picked = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (images / 255 - mean) / std for each channel, float32, channels-last in memory."""
    scaled = images.to(torch.float32, memory_format=torch.channels_last)
    offset = torch.tensor(mean, dtype=torch.float32).mul_(255).view(1, -1, 1, 1)
    factor = torch.tensor(std, dtype=torch.float32).mul_(255).reciprocal_().view(1, -1, 1, 1)
    return scaled.sub_(offset).mul_(factor)
