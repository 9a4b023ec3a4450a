"""A small GPT in plain PyTorch, with the sizes of ``gpt2-mini``, its training batches and its learning rate.

This file imports nothing of thalweg, because the compared programs use it in environments of their own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

# Windows of bytes, shape (windows, 64).
Windows = np.ndarray[Any, np.dtype[np.uint8]]
TOKENS, WINDOW, WIDTH, LAYERS, HEADS = 256, 64, 128, 4, 4


class Block(nn.Module):
    """A layer of GPT-2: a LayerNorm and attention to earlier tokens, then a LayerNorm and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.attention(self.first(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        out: torch.Tensor = x + self.narrow(functional.gelu(self.wide(self.second(x))))
        return out


class SmallGPT(nn.Module):
    """Predicts each byte of a text from those before it. The embedding is also the last layer, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(WINDOW, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = functional.linear(self.last(x), self.tokens.weight)
        return logits


def small_gpt(seed: int = 0) -> SmallGPT:
    """Return the model with initial values that follow from ``seed``: normal, with GPT-2's deviation of 0.02."""
    torch.manual_seed(seed)
    model = SmallGPT()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.dim() > 1:
                scale = 0.02 / math.sqrt(2 * LAYERS) if name.endswith(("join.weight", "narrow.weight")) else 0.02
                values.normal_(0.0, scale)
            elif name.endswith("bias"):
                values.zero_()
    return model


def loss_of(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the bytes of ``windows``, int64 of shape (windows, 64)."""
    logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


class Batches:
    """A peer's batches: windows of the training text, drawn at random with the peer's own seed."""

    def __init__(self, windows: Windows, peer: int, size: int) -> None:
        self._windows, self._size = windows, size
        self._random = np.random.default_rng(1000 + peer)

    def __next__(self) -> torch.Tensor:
        chosen = self._random.integers(len(self._windows), size=self._size)
        return torch.from_numpy(self._windows[chosen].astype(np.int64))


def rate(step: int, steps: int, top: float = 2e-3, warm: int = 50) -> float:
    """Return the inner learning rate of a step: it rises to ``top``, and then falls to a tenth along half a cosine."""
    if step < warm:
        return top * (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    return top * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))
