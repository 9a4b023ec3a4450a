"""Large networks from torchvision, untrained: ResNet-18, -34, -152 (LIFL section 6.1) and VGG-16."""

from __future__ import annotations

from typing import cast

from torch import nn

from thalweg import extras
from thalweg.errors import ModelError

NAMES = ("resnet18", "resnet34", "resnet152", "vgg16")


def build(name: str, classes: int) -> nn.Module:
    """Build one of ``NAMES`` with random weights, without a download. Raises ModelError if torchvision is missing."""
    if name not in NAMES:
        raise KeyError(name)
    try:
        from torchvision import models
    except ImportError as error:
        raise ModelError(f"the model {name!r} needs torchvision: {error}", extras.hint("torchvision")) from error
    return cast(nn.Module, getattr(models, name)(weights=None, num_classes=classes))
