"""The models a plan can name.

``MODELS`` is a table of facts and imports no framework; ``build`` imports PyTorch when it is called.
``payload:SIZE`` is not a network: it is an update of that many bytes that nobody trains, for measuring;
``payload:NAME`` one of as many as the network of that name has; ``payload:COUNTxSIZE`` one of so many tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, cast

from thalweg.errors import ModelError
from thalweg.ui.units import parse_size

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MODELS", "ModelSpec", "build", "find", "payload_bytes", "payload_tensors"]

PAYLOAD = "payload:"
PAYLOAD_ELEMENT_BYTES = 4
# Where tensors begin: between several there are no gaps.
PAYLOAD_TENSOR_BYTES = 64
MOST_PAYLOAD_TENSORS = 100_000
PAYLOAD_TENSORS = re.compile(r"([0-9]+)x(.*)", re.ASCII)


@dataclass(frozen=True)
class ModelSpec:
    """What is known of a model without building it. Counts are for ten classes and 3x32x32 input.

    ``parameters`` counts trainable values; ``values`` the elements and ``tensors`` the entries of ``state_dict()``,
    so also running means and variances and the int64 batch counters. ``layout_bytes`` is the size of the layout that
    is sent, gaps between tensors included. ``minimum_batch`` is the smallest batch that training accepts.
    """

    name: str
    family: str
    parameters: int
    values: int
    tensors: int
    layout_bytes: int
    source: str
    minimum_batch: int = 1


_FEDCOMM = "FedComm section IV.A"
_LIFL = "LIFL section 6.1"

MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec("vgg5", "vgg", 582_346, 582_669, 25, 2_330_856, _FEDCOMM),
        ModelSpec("vgg8", "vgg", 1_337_898, 1_338_800, 46, 5_355_560, _FEDCOMM),
        ModelSpec("lenet", "lenet", 89_834, 89_834, 14, 359_336, "DecentralizePy over UDP, experimental setup"),
        # At 32x32 the last stage is one pixel wide, and batch normalisation needs two values a channel.
        ModelSpec("resnet18", "torchvision_models", 11_181_642, 11_191_262, 122, 44_766_248, _LIFL, minimum_batch=2),
        ModelSpec("resnet34", "torchvision_models", 21_289_802, 21_306_862, 218, 85_229_608, _LIFL, minimum_batch=2),
        ModelSpec("resnet152", "torchvision_models", 58_164_298, 58_315_877, 932, 233_272_808, _LIFL, minimum_batch=2),
        ModelSpec("vgg16", "torchvision_models", 134_301_514, 134_301_514, 32, 537_206_056, "torchvision"),
    )
}


def find(name: str) -> ModelSpec:
    """Return the facts of model ``name``. Raises ModelError if there is no such network."""
    if name in MODELS:
        return MODELS[name]
    if payload_bytes(name) is not None:
        raise ModelError(f"{name!r} is a block of bytes and cannot be trained", "Name a network to train it")
    near = get_close_matches(name, MODELS, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise ModelError(f"unknown model {name!r}", f"{guess}Known: {', '.join(MODELS)}, payload:SIZE (as payload:8MiB)")


def build(name: str, *, classes: int = 10, seed: int = 0) -> nn.Module:
    """Build model ``name`` for images of shape (batch, 3, 32, 32), float32, in training mode.

    The same ``name``, ``classes`` and ``seed`` give the same initial values in every process.
    The caller's random state is left as it was. Raises ModelError for an unknown model.
    """
    spec = find(name)
    if classes < 2:
        raise ModelError(f"a classifier cannot have {classes} classes", "Ask for 2 classes or more")
    import torch

    family = import_module(f"thalweg.models.{spec.family}")
    make = cast("Callable[[str, int], nn.Module]", family.build)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(spec.name, classes)


def payload_bytes(name: str) -> int | None:
    """Return the size in bytes of the payload of that name, or None if ``name`` is not one. Raises ModelError."""
    tensors = payload_tensors(name)
    return None if tensors is None else sum(tensors.values())


def payload_tensors(name: str) -> dict[str, int] | None:
    """Return the tensors of a payload and their bytes, or None if ``name`` is not a payload.

    ``payload:SIZE`` is one tensor, ``payload``. SIZE is as in ``8MiB``, or the name of a network: then it is the size
    of that network's layout. ``payload:COUNTxSIZE`` is up to 100,000 of that size: ``payload.0``, ``payload.1``, ...
    Raises ModelError unless SIZE is a positive multiple of 4, the bytes of one float32, and of 64 if there are several,
    and for a COUNT beyond that.
    """
    if not name.startswith(PAYLOAD):
        return None
    said = name.removeprefix(PAYLOAD)
    several = PAYLOAD_TENSORS.fullmatch(said)
    count, size = (_tensors(name, several[1]), several[2]) if several else (None, said)
    multiple = PAYLOAD_ELEMENT_BYTES if count is None else PAYLOAD_TENSOR_BYTES
    if size in MODELS and count is None:
        return {"payload": MODELS[size].layout_bytes}
    mend = f"Give a positive multiple of {multiple} bytes, with a unit of B KB MB GB KiB MiB GiB, as payload:8MiB"
    mend += ", or a network" if count is None else ""
    try:
        each = parse_size(size)
    except ValueError as error:
        raise ModelError(f"the payload {name!r} has no size: {error}", mend) from error
    if each == 0 or each % multiple:
        raise ModelError(f"the payload {name!r} is {each} bytes, not a positive multiple of {multiple}", mend)
    return {"payload": each} if count is None else {f"payload.{place}": each for place in range(count)}


def _tensors(name: str, digits: str) -> int:
    """Return how many tensors a payload has. Raises ModelError."""
    # Digits without end are no number to make of.
    count = int(digits) if len(digits) <= len(str(MOST_PAYLOAD_TENSORS)) else MOST_PAYLOAD_TENSORS + 1
    if not 1 <= count <= MOST_PAYLOAD_TENSORS:
        raise ModelError(
            f"the payload {name[:40]!r} has no such number of tensors",
            f"Give 1 to {MOST_PAYLOAD_TENSORS} of them, as payload:100x64KiB",
        )
    return count
