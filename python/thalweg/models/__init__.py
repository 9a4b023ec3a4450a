"""The models a plan can name.

``MODELS`` is a table of facts and imports no framework; ``build`` imports PyTorch when it is called.
``NAME+loraRANK`` is a language model with LoRA adapters (Hu et al. 2021); only the adapters are trained and travel.
``payload:...`` is not a network: see ``payload.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, cast

from thalweg import extras
from thalweg.errors import ModelError
from thalweg.models import payload
from thalweg.models.payload import Dtype, PayloadSpec

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MODELS", "ModelSpec", "PayloadSpec", "build", "find", "payload_bytes", "payload_of"]

# A rank has at most four digits: GPT-2's widest matrix has 3072 rows.
LORA: Final = re.compile(r"(.+)\+lora([1-9][0-9]{0,3})", re.ASCII)

Reads = Literal["images", "text"]


@dataclass(frozen=True)
class ModelSpec:
    """Facts about a model that are known without building it. Counts are for ten classes and 3x32x32 input.

    ``parameters`` counts trainable values. ``values`` counts the elements of ``state_dict()`` and ``tensors`` its
    entries; both include running means, variances and batch counters, and count tied tensors once. ``layout_bytes`` is
    the size of the layout that is sent, gaps between tensors included. ``minimum_batch`` is the smallest batch that
    training accepts. ``lora`` describes the adapters that a model can have: in how many layers, and how many values an
    adapter of rank 1 has in a layer. ``rank`` is the rank of the adapters, which alone are then trained and sent; 0
    means no adapters.
    """

    name: str
    family: str
    parameters: int
    values: int
    tensors: int
    layout_bytes: int
    source: str
    minimum_batch: int = 1
    reads: Reads = "images"
    lora: tuple[int, int] | None = None
    rank: int = 0

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that building the model imports."""
        brings = {"torchvision_models": ("torchvision",), "gpt2": ("transformers",)}.get(self.family, ())
        return ("torch", *brings, *(("peft",) if self.rank else ()))

    def with_adapters(self, rank: int) -> ModelSpec:
        """Return this model with LoRA adapters. Then ``parameters`` and ``layout_bytes`` count the adapters alone."""
        layers, values = self.lora or (0, 0)
        added = layers * values * rank
        return replace(
            self,
            name=f"{self.name}+lora{rank}",
            parameters=added,
            values=self.values + added,
            tensors=self.tensors + 2 * layers,
            # The layout needs no padding: at any rank each of the two matrices has a multiple of 64 bytes.
            layout_bytes=4 * added,
            rank=rank,
        )


_FEDCOMM = "FedComm section IV.A"
_LIFL = "LIFL section 6.1"

MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec("vgg5", "vgg", 582_346, 582_669, 25, 2_330_856, _FEDCOMM),
        ModelSpec("vgg8", "vgg", 1_337_898, 1_338_800, 46, 5_355_560, _FEDCOMM),
        ModelSpec("lenet", "lenet", 89_834, 89_834, 14, 359_336, "DecentralizePy over UDP, experimental setup"),
        # At 32x32 the last stage is one pixel wide, but batch normalisation needs two values for each channel.
        ModelSpec("resnet18", "torchvision_models", 11_181_642, 11_191_262, 122, 44_766_248, _LIFL, minimum_batch=2),
        ModelSpec("resnet34", "torchvision_models", 21_289_802, 21_306_862, 218, 85_229_608, _LIFL, minimum_batch=2),
        ModelSpec("resnet152", "torchvision_models", 58_164_298, 58_315_877, 932, 233_272_808, _LIFL, minimum_batch=2),
        ModelSpec("vgg16", "torchvision_models", 134_301_514, 134_301_514, 32, 537_206_056, "torchvision"),
        # 12 layers of width 768, 50,257 tokens. The paper's "117M" is the name of GPT-2's first release.
        ModelSpec(
            *("gpt2", "gpt2", 124_439_808, 124_439_808, 148, 497_759_232, "FedRDMA section 4.1"),
            reads="text",
            lora=(12, 768 + 2304),
        ),
        # 4 layers of width 128; the tokens are the 256 bytes.
        ModelSpec("gpt2-mini", "gpt2", 842_496, 842_496, 52, 3_369_984, "for tests", reads="text", lora=(4, 128 + 384)),
    )
}


def find(name: str) -> ModelSpec:
    """Return the facts of model ``name``. Raises ModelError if there is no such network."""
    facts = _spec_or_none(name)
    if facts is not None:
        return facts
    if payload_bytes(name) is not None:
        raise ModelError(f"{name!r} is a block of bytes and cannot be trained", "Name a network to train it")
    plain = name.partition("+")[0]
    if plain in MODELS:
        takes = ", ".join(f"{spec.name}+lora16" for spec in MODELS.values() if spec.lora)
        raise ModelError(f"unknown model {name!r}", f"LoRA has a rank of 1 to 9999, and models that take it: {takes}")
    near = get_close_matches(name, MODELS, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise ModelError(f"unknown model {name!r}", f"{guess}Known: {', '.join(MODELS)}, payload:SIZE (as payload:8MiB)")


def _spec_or_none(name: str) -> ModelSpec | None:
    adapted = LORA.fullmatch(name)
    if adapted is None:
        return MODELS.get(name)
    plain = MODELS.get(adapted[1])
    return None if plain is None or plain.lora is None else plain.with_adapters(int(adapted[2]))


def build(name: str, *, classes: int = 10, seed: int = 0) -> nn.Module:
    """Build model ``name``, in training mode.

    Image models take shape (batch, 3, 32, 32), float32, and know ``classes``; language models take (batch, tokens),
    int64. The same ``name``, ``classes`` and ``seed`` give the same initial values in every process.
    The caller's random state does not change. Raises ModelError for an unknown model, PackageError without PyTorch.
    """
    spec = find(name)
    if classes < 2:
        raise ModelError(f"a classifier cannot have {classes} classes", "Ask for 2 classes or more")
    extras.require(f"the model {name!r}", "torch")
    import torch

    family = import_module(f"thalweg.models.{spec.family}")
    make = cast("Callable[[str, int], nn.Module]", family.build)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(spec.name, classes)


def payload_bytes(name: str) -> int | None:
    """Return the size in bytes of the payload of that name, or None if ``name`` is not one. Raises ModelError."""
    spec = payload_of(name)
    return None if spec is None else spec.bytes


def payload_of(name: str) -> PayloadSpec | None:
    """Return the tensors and dtype of the payload of that name, or None if ``name`` is not one. Raises ModelError."""
    return payload.parse(name, _network_bytes)


def _network_bytes(name: str, dtype: Dtype) -> int | None:
    spec = _spec_or_none(name)
    if spec is None:
        return None
    if dtype == "F32":
        return spec.layout_bytes
    return payload.ELEMENT_BYTES[dtype] * (spec.parameters if spec.rank else spec.values)
