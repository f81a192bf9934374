"""How many tokens go through the fused layers at once: what their backward pass keeps, and the memory that is free."""

from typing import Any

import torch
from transformers import PreTrainedModel

# Larger passes are no faster.
_MOST, _FEWEST = 40_960, 2_048
# Of what is free beyond weights, gradients, moments and the decoder's room: the rest is for the allocator's gaps.
_SHARE = 0.6
_ROOM_SHARE = 0.25
# A gradient and two moments in float32.
_BYTES_PER_WEIGHT = 12


def tokens_that_fit(model: PreTrainedModel) -> int:
    """For a model that has been loaded, before its first update."""
    free, total = torch.cuda.mem_get_info(model.device)
    free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    learning = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    left = free - _BYTES_PER_WEIGHT * learning - _ROOM_SHARE * total
    return max(_FEWEST, min(_MOST, int(_SHARE * left / bytes_per_token(model))))


def bytes_per_token(model: PreTrainedModel) -> int:
    """What the layers keep of a token for the backward pass: two sums and two norms of the hidden state, the joint
    projection, queries and what attention makes of them, keys and values (with their prompts' beside them: a quarter
    more, say), and three inner states. With gradient checkpointing: what goes into every layer, and one's insides."""
    base: Any = model.base_model
    attention, hidden, layers = base.layers[0].self_attn, model.config.hidden_size, len(base.layers)
    heads = 3 * attention.q_proj.out_features + 4.5 * attention.k_proj.out_features
    inside = 4 * hidden + heads + 3 * model.config.intermediate_size
    numbers = inside + 2 * hidden * layers if model.is_gradient_checkpointing else inside * layers
    return int(numbers * model.dtype.itemsize)
