"""A model's weights as the captured graphs read them: joint projections and merged adapters as copies, all else where
the model has it.

Graphs hold addresses. The optimizer moves weights in place, so a graph goes on being right; copies are made anew before
each use.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from egpo.local.models.cuda.kernels.heads import HeadNorms, HeadShape
from egpo.local.models.cuda.packed import head_norms, head_shape
from egpo.local.models.lora import is_adapted, merged_weight


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """`joint` makes queries, keys and values at once; `gate_up` the gate and what it gates."""

    joint: Tensor
    joint_bias: Tensor | None
    out: Tensor
    gate_up: Tensor
    down: Tensor
    first_norm: Tensor
    second_norm: Tensor
    head_norms: HeadNorms | None
    eps: float
    scale: float

    @classmethod
    def of(cls, layer: Any) -> "LayerWeights":
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        return cls(
            joint=_joined(*projections),
            joint_bias=None if projections[0].bias is None else torch.cat([part.bias for part in projections]),
            out=merged_weight(attention.o_proj),
            gate_up=_joined(mlp.gate_proj, mlp.up_proj),
            down=merged_weight(mlp.down_proj),
            first_norm=layer.input_layernorm.weight,
            second_norm=layer.post_attention_layernorm.weight,
            head_norms=head_norms(attention),
            eps=layer.input_layernorm.variance_epsilon,
            scale=attention.scaling,
        )

    def refresh(self, layer: Any) -> None:
        """The copies, from the weights as they are now."""
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.joint.copy_(_joined(*projections))
        self.gate_up.copy_(_joined(mlp.gate_proj, mlp.up_proj))
        if self.joint_bias is not None:
            torch.cat([part.bias for part in projections], out=self.joint_bias)
        for copy, part in ((self.out, attention.o_proj), (self.down, mlp.down_proj)):
            if is_adapted(part):
                copy.copy_(merged_weight(part))


class DecoderWeights:
    @torch.no_grad()
    def __init__(self, model: PreTrainedModel) -> None:
        base: Any = model.base_model
        self._model = model
        self._addresses = _addresses(model)
        self.layers = [LayerWeights.of(layer) for layer in base.layers]
        self.embedding_VD: Tensor = base.embed_tokens.weight
        self.head_VD: Tensor = model.get_output_embeddings().weight
        self.norm, self.eps = base.norm.weight, base.norm.variance_epsilon
        self.heads: HeadShape = head_shape(base.layers[0].self_attn)

    @torch.no_grad()
    def refresh(self) -> None:
        for layer, weights in zip(self._model.base_model.layers, self.layers, strict=True):
            weights.refresh(layer)

    @property
    def are_where_they_were(self) -> bool:
        """False once a weight was replaced rather than moved in place: graphs would read what nobody writes."""
        return self._addresses == _addresses(self._model)


def _joined(*parts: Any) -> Tensor:
    return torch.cat([merged_weight(part) for part in parts])


def _addresses(model: PreTrainedModel) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]
