"""The prompts' keys, values and last hidden states. P prompts, N tokens of a pack, K heads of keys, d their width."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

from egpo.local.cuda.packed import packed_hidden
from egpo.local.cuda.portions import Prompt, portions
from egpo.local.policies.packs import Sequences, pack_groups

if TYPE_CHECKING:
    from egpo.local.cuda.room import Room

# That go through the model together: enough to fill a GPU, little beside the weights.
_TOKENS_AT_ONCE = 16_384


def prefill(model: PreTrainedModel, room: "Room", prompts: Sequence[Prompt]) -> None:
    """Into the room, some prompts at a time: memory does not grow with their number."""
    first = 0
    for portion in portions(prompts, _TOKENS_AT_ONCE):
        _prefill_portion(model, room, first, portion)
        first += len(portion)


def _prefill_portion(model: PreTrainedModel, room: "Room", first: int, prompts: Sequence[Prompt]) -> None:
    """`first` is the place of the first one in the room."""
    pack = pack_groups([Sequences(prompt) for prompt in prompts], model.device)
    lengths = torch.tensor([group.prompt_length for group in pack.layout.groups], device=model.device)
    prompt_N = torch.arange(first, first + len(prompts), device=model.device).repeat_interleave(lengths)

    def collect(layer: int, key_NKd: Tensor, value_NKd: Tensor) -> None:
        room.layers[layer].prompt_keys[prompt_N, :, pack.position_N] = key_NKd
        room.layers[layer].prompt_values[prompt_N, :, pack.position_N] = value_NKd

    hidden_ND = packed_hidden(model, pack, collect)
    room.length_P[first : first + len(prompts)] = lengths.int()
    room.prompt_hidden_PD[first : first + len(prompts)] = hidden_ND[lengths.cumsum(0) - 1]
