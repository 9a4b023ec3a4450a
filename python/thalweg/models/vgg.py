"""VGG-5 and VGG-8 as FedComm trains them (FedComm section IV.A)."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

POOL: Final = 0
HIDDEN: Final = 128
INPUT_CHANNELS: Final = 3
INPUT_SIDE: Final = 32

# Output channels of each 3x3 convolution; POOL halves the side.
FEATURES: Final[dict[str, tuple[int, ...]]] = {
    "vgg5": (32, POOL, 64, POOL, 64),
    "vgg8": (32, 32, POOL, 64, 64, POOL, 128, 128),
}


class VGG(nn.Module):
    """A small VGG: blocks of convolution, batch normalisation and ReLU, then two linear layers.

    Input (batch, 3, 32, 32) float32, output (batch, classes) logits. There is no activation between the two
    linear layers: FedComm's networks have none.
    """

    def __init__(self, features: tuple[int, ...], classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, side = INPUT_CHANNELS, INPUT_SIDE
        for width in features:
            if width == POOL:
                layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
                side //= 2
            else:
                layers += _block(channels, width)
                channels = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(channels * side * side, HIDDEN), nn.Linear(HIDDEN, classes))
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits


def build(name: str, classes: int) -> nn.Module:
    """Build ``vgg5`` or ``vgg8`` with initial values from torch's global random state."""
    return VGG(FEATURES[name], classes)


def _block(channels: int, width: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, mean=0.0, std=0.01)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.ones_(module.weight)
    else:
        return
    if module.bias is not None:
        nn.init.zeros_(module.bias)
