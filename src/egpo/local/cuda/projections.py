"""Products with a model's linear layers, with and without adapters. N tokens, D in, A out, r the adapters' rank."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from egpo.local.policies.lora import is_adapted


def projected(input_ND: Tensor, *parts: Any) -> Tensor:
    """The outputs of several layers side by side: one product, unless they have adapters."""
    if any(is_adapted(part) for part in parts):
        outputs = [_adapted(input_ND, part) if is_adapted(part) else part(input_ND) for part in parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
    if len(parts) == 1:
        return linear(input_ND, parts[0].weight, parts[0].bias)
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    return linear(input_ND, torch.cat([part.weight for part in parts]), bias)


def _adapted(input_ND: Tensor, part: Any) -> Tensor:
    """As peft computes it under autocast, in the input's precision. Without, it multiplies in float32, and keeps a copy
    of the input of every layer for the backward pass: half as much memory again, and more time."""
    base_NA = linear(input_ND, part.base_layer.weight, part.base_layer.bias)
    if part.disable_adapters or part.merged:
        return base_NA
    for name in part.active_adapters:
        down_rD, up_Ar = part.lora_A[name].weight, part.lora_B[name].weight * part.scaling[name]
        base_NA = base_NA + linear(linear(input_ND, down_rD.to(input_ND.dtype)), up_Ar.to(input_ND.dtype))
    return base_NA
