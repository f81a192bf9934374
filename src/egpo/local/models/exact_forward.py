"""Compute a model's logits in a higher precision than its weights have, without a second copy of the model.

The weights of one module at a time are converted while that module computes, so that the memory needed beyond the
model's own is that of the largest module, in slices of SLICE_BYTES for linear layers. Activations are in the higher
precision throughout, except where transformers itself computes in float32 (norms and rotary angles).
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module
from torch.nn.functional import linear
from transformers import PreTrainedModel

from egpo.local.models.attention import ATTENTION_NAME

SLICE_BYTES = 64 * 2**20


def plain_logits(model: PreTrainedModel, rows: Sequence[Sequence[int]], dtype: torch.dtype | None = None) -> Tensor:
    """Return the logits (R, T, V) of some sequences by `model(input_ids)` with the attention of transformers.

    `dtype` is a higher precision; without it the model computes in its own. Shorter sequences are filled up at the end,
    where no token of the sequence sees it. All rows go through at once, so that every weight is converted once."""
    longest = max(map(len, rows))
    token_RT = torch.tensor([[*row, *[row[-1]] * (longest - len(row))] for row in rows], device=model.device)
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    try:
        with ExitStack() as stack:
            if dtype is not None and dtype != model.dtype:
                stack.enter_context(_plain_experts(model))
                stack.enter_context(_computing_in(model, dtype))
            logits_RTV: Tensor = model(token_RT, use_cache=False).logits
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    return logits_RTV


@contextmanager
def _plain_experts(model: PreTrainedModel) -> Iterator[None]:
    """Compute mixtures of experts by a loop: the grouped products of torch know no float64."""
    before = getattr(model.config, "_experts_implementation", None)
    if before in (None, "eager") or not hasattr(model, "set_experts_implementation"):
        yield
        return
    model.set_experts_implementation("eager")
    try:
        yield
    finally:
        model.set_experts_implementation(before)


@contextmanager
def _computing_in(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[None]:
    with ExitStack() as stack:
        for module in model.modules():
            if type(module) is Linear:
                stack.enter_context(_replaced_forward(module, partial(_sliced_linear, module, dtype)))
            elif type(module) is Embedding:
                stack.enter_context(_replaced_forward(module, partial(_converted_rows, module, dtype)))
            elif next(module.parameters(recurse=False), None) is not None:
                stack.enter_context(_replaced_forward(module, partial(_with_converted_weights, module, dtype)))
        yield


@contextmanager
def _replaced_forward(module: Module, forward: Any) -> Iterator[None]:
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


def _sliced_linear(module: Linear, dtype: torch.dtype, x: Tensor) -> Tensor:
    rows = max(1, SLICE_BYTES // (module.in_features * dtype.itemsize))
    weights = torch.split(module.weight, rows)
    biases = (
        [None] * len(weights) if module.bias is None else [part.to(dtype) for part in torch.split(module.bias, rows)]
    )
    parts = [linear(x, weight.to(dtype), bias) for weight, bias in zip(weights, biases, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _converted_rows(module: Embedding, dtype: torch.dtype, token: Tensor) -> Tensor:
    return Embedding.forward(module, token).to(dtype)


def _with_converted_weights(module: Module, dtype: torch.dtype, *inputs: Any, **options: Any) -> Any:
    own = list(module.parameters(recurse=False))
    stored = [weight.data for weight in own]
    for weight in own:
        weight.data = weight.data.to(dtype)
    try:
        return type(module).forward(module, *inputs, **options)
    finally:
        for weight, data in zip(own, stored, strict=True):
            weight.data = data
