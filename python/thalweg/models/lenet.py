"""The LeNet with group normalisation of the DecentralizePy-over-UDP report (its experimental setup).

The report's text names the order convolution, pooling, normalisation. Its code has convolution, normalisation, ReLU,
pooling, and this network follows the code. The report counts 89,578 parameters, without the 256 of the normalisation;
an update has all 89,834.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

WIDTHS: Final = (32, 32, 64)
GROUPS: Final = 2
KERNEL: Final = 5
INPUT_CHANNELS: Final = 3
FLAT: Final = 1024  # 64 channels of 4x4 after three poolings of 32x32


class LeNet(nn.Module):
    """Three blocks of 5x5 convolution, GroupNorm, ReLU, 2x2 max pooling; one linear layer.

    Input (batch, 3, 32, 32) float32, output (batch, classes) logits.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = INPUT_CHANNELS
        for width in WIDTHS:
            layers += [
                nn.Conv2d(channels, width, KERNEL, padding="same"),
                nn.GroupNorm(GROUPS, width),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(kernel_size=2, stride=2),
            ]
            channels = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(FLAT, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits


def build(name: str, classes: int) -> nn.Module:
    """Build ``lenet`` with PyTorch's default initial values from torch's global random state."""
    if name != "lenet":
        raise KeyError(name)
    return LeNet(classes)
