"""LoRA adapters beside frozen weights (Hu et al. 2021, arXiv:2106.09685), through peft.

The adapters are put into the transformers model itself, which keeps its class. Tensor suffixes: D inputs, r rank.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from egpo.config.sections.training import Lora
from egpo.errors import InputError, nearest

_ADAPTER = "default"


def add_adapters(model: PreTrainedModel, settings: Lora, seed: int) -> None:
    """Freeze the weights, and add float32 adapters to the chosen layers: W x + alpha / rank * B A x.

    B starts at 0, so the model's output does not change. A is random, and depends on the seed alone.
    """
    _require_peft()
    from peft import LoraConfig, inject_adapter_in_model

    _require_layers(model, settings)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        target_modules=list(settings.layers) or "all-linear",
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # GPT-2's weights are transposed
    )
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, adapter_name=_ADAPTER)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_is_adapter(name))
        if _is_adapter(name):
            parameter.data = parameter.data.float()


@contextmanager
def adapters_off(model: PreTrainedModel) -> Iterator[None]:
    """Disable the adapters within the `with` block, so that the model is the one that training started from."""
    layers = _adapted_layers(model).values()
    for layer in layers:
        layer.enable_adapters(enabled=False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(enabled=True)


def adapter_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the adapters' weights by name, for a checkpoint; empty for a model without adapters."""
    return {name: tensor.detach() for name, tensor in model.named_parameters() if _is_adapter(name)}


@torch.no_grad()
def load_adapter_state(model: PreTrainedModel, state: Mapping[str, Tensor]) -> None:
    """Load weights that `adapter_state` returned. Raise InputError if they belong to other adapters."""
    own = adapter_state(model)
    expected, found = ({name: tensor.shape for name, tensor in named.items()} for named in (own, state))
    wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    if wrong:
        raise InputError(
            f"{len(wrong)} adapters do not belong to this model, for example {wrong[0]}",
            where="checkpoint",
            fix="resume with the model.lora settings that the checkpoint was written with",
        )
    for name, tensor in own.items():
        tensor.copy_(state[name])


@torch.no_grad()
def merged_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the state of an equivalent model without adapters: W + alpha / rank * B A, under the name of W.

    For a model without adapters this is its own state. Tied tensors stay tied.
    """
    merged = {f"{name}.weight": merged_weight(layer) for name, layer in _adapted_layers(model).items()}
    plain = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict().items()
        if not _is_adapter(name)
    }
    return plain | merged


def is_adapted(layer: torch.nn.Module) -> bool:
    """Return whether the layer has an adapter."""
    return hasattr(layer, "base_layer") and hasattr(layer, "get_delta_weight")


@torch.no_grad()
def merged_weight(layer: Any) -> Tensor:
    """Return W, or W + alpha / rank * B A for a layer with an adapter."""
    weight: Tensor = layer.weight
    return (weight.float() + layer.get_delta_weight(_ADAPTER)).to(weight.dtype) if is_adapted(layer) else weight


def _is_adapter(name: str) -> bool:
    return ".lora_" in name


def _adapted_layers(model: PreTrainedModel) -> dict[str, Any]:
    if find_spec("peft") is None:
        return {}
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def _require_peft() -> None:
    if find_spec("peft") is None:
        raise InputError("LoRA adapters need the package peft", where="model.lora", fix="pip install peft")


def _require_layers(model: PreTrainedModel, settings: Lora) -> None:
    """Raise InputError for a name that fits no layer: peft ignores it if another name fits."""
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    matrices = {name: module for name, module in model.named_modules() if getattr(module, "weight", None) is not None}
    for wanted in settings.layers:
        matches = [module for name, module in matrices.items() if name == wanted or name.endswith(f".{wanted}")]
        if not any(module.weight.ndim == 2 for module in matches):
            known = {name.rpartition(".")[2] for name, module in matrices.items() if module.weight.ndim == 2}
            what = f"the model has no layer `{wanted}`"
            raise InputError(what, where="model.lora.layers", fix=nearest(wanted, known))
        # The engine reads the head's weight without adapters, and a tied embedding is the head.
        if any(module in embeddings for module in matches):
            what = f"`{wanted}` is an embedding, which cannot have an adapter"
            raise InputError(what, where="model.lora.layers", fix="remove it from the list")
