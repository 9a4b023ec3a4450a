"""GPT-2, untrained (FedRDMA section 4.1), with LoRA adapters on its attention if wanted (section 4.4).

Both need the extra ``thalweg[lm]``. The network is that of transformers, with the same names of tensors, so that its
checkpoints can be loaded there. The adapters are peft's. Nothing is downloaded: tokens are the bytes of UTF-8, because
GPT-2's vocabulary is a file on the network. The network keeps the vocabulary size of 50,257, so its layers have the
sizes of GPT-2, although only 256 tokens occur.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from thalweg import extras
from thalweg.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

HINT: Final = extras.hint("transformers")

# Differences from GPT-2 small, which has 12 layers, 12 heads, width 768, 50,257 tokens and contexts of 1,024.
SIZES: Final[dict[str, dict[str, int]]] = {
    "gpt2": {},
    "gpt2-mini": {"vocab_size": 256, "n_positions": 128, "n_embd": 128, "n_layer": 4, "n_head": 4},
}
# The projection to queries, keys and values. Adapters on it have the sizes of FedRDMA's table 3.
ADAPTED: Final = "c_attn"


def build(name: str, classes: int) -> nn.Module:
    """Build one of ``SIZES``, or one with adapters, such as ``gpt2+lora16``. ``classes`` is ignored.

    Initial values come from torch's global random state. With adapters, only the adapters have ``requires_grad``.
    Raises ModelError if a package is missing.
    """
    plain, _, rank = name.partition("+lora")
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise ModelError(f"the model {name!r} needs transformers: {error}", HINT) from error
    network = GPT2LMHeadModel(GPT2Config(use_cache=False, bos_token_id=None, eos_token_id=None, **SIZES[plain]))
    return cast("nn.Module", _adapted(network, name, int(rank)) if rank else network).train()


def _adapted(network: Any, name: str, rank: int) -> Any:
    """Add adapters to a network and freeze all other values: W + (alpha / rank) B A with alpha = 2 rank, B = 0."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ModelError(f"the model {name!r} needs peft: {error}", HINT) from error
    # GPT-2's layers store their matrices transposed, as (inputs, outputs): fan_in_fan_out.
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=[ADAPTED], fan_in_fan_out=True)
    return inject_adapter_in_model(config, network)
