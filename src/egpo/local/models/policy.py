"""A causal language model as the engine uses it: hidden states of packs, one more token for slots, and the head."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from egpo.errors import warn_once
from egpo.local.models import cpu_decoder
from egpo.local.models.architectures import why_not_fused, why_not_lean
from egpo.local.models.attention import PackLayout, SlotLayout
from egpo.local.models.caches import BlockSlots, GroupSlots, Slots
from egpo.local.models.cpu_decoder import Attend, decode
from egpo.local.models.cpu_decoding import can_decode
from egpo.local.models.packs import Pack

if TYPE_CHECKING:
    from egpo.local.sampling.cuda.decoder import Decoder


AnySlots = Slots | GroupSlots | BlockSlots


@dataclass(eq=False)
class Policy:
    """`stop_ids` end a response; `context` is the longest sequence; `template` are variables for the chat template."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    context: int
    stop_ids: frozenset[int]
    pad_id: int
    template: dict[str, Any] = field(default_factory=dict)
    _decoder: "Decoder | None" = field(default=None, init=False, repr=False)

    @property
    def device(self) -> torch.device:
        return self.head_VD.device

    @property
    def head_VD(self) -> Tensor:
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def path(self) -> str:
        """ "fused", "lean": the engine's own forward pass on a GPU, on a CPU; "transformers": the model's own."""
        if not why_not_fused(self.model):
            return "fused"
        return "transformers" if why_not_lean(self.model) else "lean"

    @property
    def decoder(self) -> "Decoder | None":
        """Samples by captured graphs, where the model's path is the fused one. The first to miss the path that is its
        device's own says why."""
        path = self.path
        if path == "transformers":
            why = why_not_fused(self.model) if self.device.type == "cuda" else why_not_lean(self.model)
            warn_once(
                "path", f"on the slower path, through transformers: {why} (`egpo doctor` lists the faster models)"
            )
        if self._decoder is None and path == "fused":
            from egpo.local.sampling.cuda.decoder import Decoder

            self._decoder = Decoder(self.model, self.tokenizer)
        return self._decoder

    def open_slots(self) -> AnySlots:
        """An empty cache, of the kind that the model's path fills."""
        if self.path != "lean":
            return Slots()
        return BlockSlots(self.model) if can_decode(self.model) else GroupSlots()

    def hidden(self, pack: Pack, cache: AnySlots | None = None) -> Tensor:
        """(N, D): hidden states after the last norm, with a gradient where gradients are on. A cache keeps the keys
        and values of the pack's prompts."""
        path = self.path if cache is None else None
        if path == "fused":
            from egpo.local.models.cuda.packed import packed_hidden

            return packed_hidden(self.model, pack)
        if isinstance(cache, GroupSlots | BlockSlots) or path == "lean":
            return decode(self.model, pack.token_N, pack.position_N, _over_pack(pack.layout, cache))
        return self._forward(pack.token_N[None], pack.position_N[None], pack.layout, cache)[0]

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """(R, V) in float32, whatever the weights are in: rounded to bfloat16 they would give other probabilities than
        the update computes."""
        if hidden_RD.is_cuda and hidden_RD.dtype != torch.float32:
            return torch.mm(hidden_RD, self.head_VD.T, out_dtype=torch.float32)
        return hidden_RD.float() @ self.head_VD.float().T

    def next_hidden(self, token_R: Tensor, slots: AnySlots) -> Tensor:
        """(R, D): one more token for each row of slots."""
        if isinstance(slots, BlockSlots):
            return slots.next_hidden(token_R)
        if isinstance(slots, GroupSlots):
            slots.open_next()
            return decode(self.model, token_R, slots.position_R, slots.attend)
        layout = slots.open_next()
        return self._forward(token_R[:, None], slots.position_R[:, None], layout, slots)[:, 0]

    def _forward(self, token: Tensor, position: Tensor, layout: PackLayout | SlotLayout, cache: Slots | None) -> Tensor:
        if self.model.is_gradient_checkpointing:
            # transformers takes the cache away from a layer in training that it would compute again.
            self.model.train(cache is None)
        out = self.model.base_model(
            input_ids=token, position_ids=position, past_key_values=cache, use_cache=cache is not None, layout=layout
        )
        hidden: Tensor = out.last_hidden_state
        return hidden


def _over_pack(layout: PackLayout, cache: GroupSlots | BlockSlots | None) -> Attend:
    def attend(layer: int, query_NHd: Tensor, key_NKd: Tensor, value_NKd: Tensor, scale: float) -> Tensor:
        if cache is not None:
            cache.collect(key_NKd, value_NKd)
        return cpu_decoder.attend(query_NHd, key_NKd, value_NKd, layout, scale)

    return attend
