"""A model's weights in the form that captured graphs read.

Joint projections and merged adapters are copies, all others are the model's own tensors. Graphs contain addresses. The
optimizer changes weights in place, so a graph stays valid; copies are refreshed before each use.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from egpo.local.models.architectures import LayerParts, layers_of
from egpo.local.models.cuda.kernels.heads import HeadNorms, HeadShape
from egpo.local.models.cuda.packed import head_norms, head_shape
from egpo.local.models.lora import is_adapted, merged_weight


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One layer's weights. `joint` projects to queries, keys and values at once; `gate_up` to both MLP inputs."""

    joint: Tensor
    joint_bias: Tensor | None
    out: Tensor
    gate_up: Tensor
    down: Tensor
    attention_norm: Tensor
    mlp_norm: Tensor
    head_norms: HeadNorms | None
    eps: float
    scale: float

    @classmethod
    def of(cls, layer: LayerParts) -> "LayerWeights":
        joint = (layer.query, layer.key, layer.value)
        return cls(
            joint=_joined(*joint),
            joint_bias=None if joint[0].bias is None else torch.cat([part.bias for part in joint]),
            out=merged_weight(layer.out),
            gate_up=_joined(layer.gate, layer.up),
            down=merged_weight(layer.down),
            attention_norm=layer.attention_norm.weight,
            mlp_norm=layer.mlp_norm.weight,
            head_norms=head_norms(layer),
            eps=layer.attention_norm.variance_epsilon,
            scale=layer.scale,
        )

    def refresh(self, layer: LayerParts) -> None:
        """Update the tensors that are copies from the layer's current weights."""
        joint = (layer.query, layer.key, layer.value)
        self.joint.copy_(_joined(*joint))
        self.gate_up.copy_(_joined(layer.gate, layer.up))
        if self.joint_bias is not None:
            torch.cat([part.bias for part in joint], out=self.joint_bias)
        for copy, part in ((self.out, layer.out), (self.down, layer.down)):
            if is_adapted(part):
                copy.copy_(merged_weight(part))


class DecoderWeights:
    """The weights of all layers, and of the embedding, the last norm and the head."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel) -> None:
        base: Any = model.base_model
        self._model = model
        self._addresses = _addresses(model)
        self.layers = [LayerWeights.of(layer) for layer in layers_of(model)]
        self.embedding_VD: Tensor = base.embed_tokens.weight
        self.head_VD: Tensor = model.get_output_embeddings().weight
        self.norm, self.eps = base.norm.weight, base.norm.variance_epsilon
        self.heads: HeadShape = head_shape(layers_of(model)[0])

    @torch.no_grad()
    def refresh(self) -> None:
        for layer, weights in zip(layers_of(self._model), self.layers, strict=True):
            weights.refresh(layer)

    @property
    def have_same_addresses(self) -> bool:
        """Whether all weights are still the same tensors. If one was replaced, graphs would read the old one."""
        return self._addresses == _addresses(self._model)


def _joined(*parts: Any) -> Tensor:
    return torch.cat([merged_weight(part) for part in parts])


def _addresses(model: PreTrainedModel) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]
