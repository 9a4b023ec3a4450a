"""GPT-2 by its configuration, untrained (FedRDMA section 4.1), and LoRA adapters on its attention (section 4.4).

Both come from the extra ``thalweg[lm]``. The network is that of transformers, with its names of tensors, so that a
checkpoint loads there; the adapters are peft's. Nothing is downloaded: tokens are the bytes of UTF-8, for GPT-2's own
vocabulary is a file that would have to be fetched. Sizes do not depend on which of its 50,257 tokens occur.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from thalweg.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

HINT: Final = "pip install 'peft>=0.15' 'transformers>=4.50'"

# What differs from GPT-2 small: 12 layers, 12 heads, width 768, 50,257 tokens, contexts of 1,024.
SIZES: Final[dict[str, dict[str, int]]] = {
    "gpt2": {},
    "gpt2-mini": {"vocab_size": 256, "n_positions": 128, "n_embd": 128, "n_layer": 4, "n_head": 4},
}
# The projection to queries, keys and values: with it the adapters have the sizes of FedRDMA's table 3.
ADAPTED: Final = "c_attn"


def build(name: str, classes: int) -> nn.Module:
    """Build one of ``SIZES``, or one with adapters as ``gpt2+lora16``. ``classes`` means nothing here.

    Initial values are from torch's global random state. With adapters only they have ``requires_grad``. Raises
    ModelError if a package is missing.
    """
    plain, _, rank = name.partition("+lora")
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise ModelError(f"the model {name!r} needs transformers: {error}", HINT) from error
    made = GPT2LMHeadModel(GPT2Config(use_cache=False, bos_token_id=None, eos_token_id=None, **SIZES[plain]))
    return cast("nn.Module", _adapted(made, name, int(rank)) if rank else made).train()


def _adapted(network: Any, name: str, rank: int) -> Any:
    """Put adapters of a rank into a network and freeze the rest: W + (2 rank / rank) B A, and B is 0 at first."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ModelError(f"the model {name!r} needs peft: {error}", HINT) from error
    # GPT-2's layers hold their matrices as (inputs, outputs), which peft has to be told.
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=[ADAPTED], fan_in_fan_out=True)
    return inject_adapter_in_model(config, network)
