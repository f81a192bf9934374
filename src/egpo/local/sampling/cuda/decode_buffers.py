"""Memory that the captured graphs read and write: allocated once, larger when more is asked for.

R rows at once, P prompts, L tokens of the longest, T new tokens, B rows of the tables, K heads of keys, d their width.

Prompts, some at a time.

The prompts' keys, values and last hidden states. P prompts, N tokens of a pack, K heads of keys, d their width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from egpo.local.models.cuda.packed import head_shape, packed_hidden, rotation_tables
from egpo.local.models.packs import Sequences, pack_groups
from egpo.local.sampling.cuda.kernels.attention import LayerCache, RowPlaces, rows_in_a_tile
from egpo.local.sampling.cuda.kernels.choose import RowState, TokenTables


@dataclass(frozen=True)
class RoomSize:
    rows: int
    prompts: int
    prompt_tokens: int
    new_tokens: int
    table_rows: int
    stops: int

    def holds(self, other: "RoomSize") -> bool:
        return self.joined(other) == self

    def joined(self, other: "RoomSize") -> "RoomSize":
        """Room for either."""
        return RoomSize(*(max(getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__))

    def limited(self, rows: int | None) -> "RoomSize":
        """With this many rows at most."""
        return self if rows is None else replace(self, rows=max(1, min(self.rows, rows)))

    def cache_bytes(self, model: PreTrainedModel) -> int:
        """Of keys and values."""
        shape, weight = head_shape(model.base_model.layers[0].self_attn), model.get_input_embeddings().weight
        tokens = self.rows * self.new_tokens + self.prompts * self.prompt_tokens
        return int(2 * len(model.base_model.layers) * shape.keys * shape.width * weight.element_size() * tokens)


class DecodeBuffers:
    """The key-value cache, the state of rows, and the tables that they write to."""

    def __init__(self, model: PreTrainedModel, size: RoomSize) -> None:
        weight = model.get_input_embeddings().weight
        heads, device = head_shape(model.base_model.layers[0].self_attn), weight.device
        self.size, self.tile = size, rows_in_a_tile(heads.queries // heads.keys)
        prompts = (size.prompts, heads.keys, size.prompt_tokens, heads.width)
        own = (size.rows, heads.keys, size.new_tokens, heads.width)
        self.layers = [
            LayerCache(*(weight.new_empty(shape) for shape in (prompts, prompts, own, own)))
            for _ in model.base_model.layers
        ]
        self.cos, self.sin = rotation_tables(model, size.prompt_tokens + size.new_tokens, weight.dtype)
        self.length_P = torch.zeros(size.prompts, dtype=torch.int32, device=device)
        self.hidden_RD = weight.new_zeros(size.rows, weight.shape[1])
        self.prompt_hidden_PD = weight.new_zeros(size.prompts, weight.shape[1])
        # One tensor, so that a new order of rows is one copy: see `_STATE`.
        self.state = torch.zeros(len(_STATE), size.rows, dtype=torch.int32, device=device)
        self.uniform_BT = torch.zeros(size.table_rows, size.new_tokens, dtype=torch.float64, device=device)
        self.tables = _tables(size, device)
        self.stop_ids = torch.full((size.stops,), -1, dtype=torch.long, device=device)
        self.limit_1 = torch.zeros(1, dtype=torch.int32, device=device)

    def of_state(self, name: str, rows: int) -> Tensor:
        return self.state[_STATE.index(name), :rows]

    def places(self, rows: int) -> RowPlaces:
        prompt_R, tile_R, slot_R, place_R, live_R = (
            self.of_state(name, rows) for name in ("prompt", "tile", "slot", "place", "live")
        )
        return RowPlaces(prompt_R, self.length_P, tile_R, slot_R, place_R, live_R)

    def row_state(self, rows: int) -> RowState:
        return RowState(*(self.of_state(name, rows) for name in ("row", "own", "place", "position", "live")))


_STATE = ("row", "prompt", "tile", "slot", "own", "place", "position", "live")


def _tables(size: RoomSize, device: torch.device) -> TokenTables:
    shape = (size.table_rows, size.new_tokens)
    return TokenTables(
        response_BT=torch.zeros(shape, dtype=torch.long, device=device),
        logp_BT=torch.zeros(shape, device=device),
        entropy_BT=torch.zeros(shape, device=device),
        length_B=torch.zeros(size.table_rows, dtype=torch.long, device=device),
        finished_B=torch.zeros(size.table_rows, dtype=torch.bool, device=device),
    )


Prompt = Sequence[int]


def portions(prompts: Sequence[Prompt], most_tokens: int) -> Iterator[Sequence[Prompt]]:
    """In order, of so many tokens at most; a longer prompt is one by itself."""
    first = tokens = 0
    for place, prompt in enumerate(prompts):
        if tokens and tokens + len(prompt) > most_tokens:
            yield prompts[first:place]
            first, tokens = place, 0
        tokens += len(prompt)
    yield prompts[first:]


# That go through the model together: enough to fill a GPU, little beside the weights.
_TOKENS_AT_ONCE = 16_384


def prefill(model: PreTrainedModel, room: "DecodeBuffers", prompts: Sequence[Prompt]) -> None:
    """Into the room, some prompts at a time: memory does not grow with their number."""
    first = 0
    for portion in portions(prompts, _TOKENS_AT_ONCE):
        _prefill_portion(model, room, first, portion)
        first += len(portion)


def _prefill_portion(model: PreTrainedModel, room: "DecodeBuffers", first: int, prompts: Sequence[Prompt]) -> None:
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
