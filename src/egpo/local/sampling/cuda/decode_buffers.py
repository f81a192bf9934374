"""The GPU memory that captured CUDA graphs use, and the prefill that fills it with prompts.

It is allocated again only if a call of the sampler needs more. Tensor suffixes: R responses that are decoded at the
same time, B all responses of the call, P prompts, L tokens of the longest prompt, T new tokens, N tokens of prompts
that are concatenated without padding, K heads of keys, d the width of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from egpo.local.models.architectures import layers_of
from egpo.local.models.cuda.packed import head_shape, packed_hidden, rotation_tables
from egpo.local.models.packs import Sequences, pack_groups
from egpo.local.rollouts import Alternatives
from egpo.local.sampling.choose import NUM_POSITIONS, ResponseTables
from egpo.local.sampling.cuda.kernels.attention import LayerCache, RowPlaces, rows_in_a_tile
from egpo.local.sampling.cuda.kernels.draw_tokens import RowState
from egpo.local.sampling.cuda.row_scheduler import Prompt, chunk_prompts


@dataclass(frozen=True)
class BufferSize:
    """The size of the buffers: rows at once, prompts and their tokens, new tokens, rows of the tables, stop tokens,
    tokens of each recorded alternative, and 1 if tokens may be forced (episodes)."""

    rows: int
    prompts: int
    prompt_tokens: int
    new_tokens: int
    table_rows: int
    stops: int
    alternatives: int = 0
    forces: int = 0

    def holds(self, other: "BufferSize") -> bool:
        return self.joined(other) == self

    def joined(self, other: "BufferSize") -> "BufferSize":
        """Return the smallest size that holds both sizes."""
        return BufferSize(*(max(getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__))

    def limited(self, rows: int | None) -> "BufferSize":
        """Return this buffer size with at most `rows` rows, which are decoded at the same time; None: unchanged."""
        return self if rows is None else replace(self, rows=max(1, min(self.rows, rows)))

    def cache_bytes(self, model: PreTrainedModel) -> int:
        """Return the size of the key-value cache in bytes."""
        shape, weight = head_shape(layers_of(model)[0]), model.get_input_embeddings().weight
        tokens = self.rows * self.new_tokens + self.prompts * self.prompt_tokens
        return int(2 * len(model.base_model.layers) * shape.keys * shape.width * weight.element_size() * tokens)


class DecodeBuffers:
    """The key-value cache, the state of the rows, and the tables that they write to."""

    def __init__(self, model: PreTrainedModel, size: BufferSize) -> None:
        weight = model.get_input_embeddings().weight
        heads, device = head_shape(layers_of(model)[0]), weight.device
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
        # One tensor for all quantities (named by _STATE), so that writing a new order of rows is one copy.
        self.state = torch.zeros(len(_STATE), size.rows, dtype=torch.int32, device=device)
        self.uniform_BT = torch.zeros(size.table_rows, size.new_tokens, dtype=torch.float64, device=device)
        self.tables = _tables(size, device)
        self.stop_ids = torch.full((size.stops,), -1, dtype=torch.long, device=device)
        self.limit_B = torch.zeros(size.table_rows, dtype=torch.int32, device=device)
        shape = (size.table_rows, size.new_tokens)
        self.forced_BT = torch.full(shape, -1, dtype=torch.int32, device=device) if size.forces else None

    def of_state(self, name: str, rows: int) -> Tensor:
        """Return one quantity of `state`, by its name in _STATE, for the first `rows` rows of the batch."""
        return self.state[_STATE.index(name), :rows]

    def places(self, rows: int) -> RowPlaces:
        prompt_R, tile_R, slot_R, place_R, live_R = (
            self.of_state(name, rows) for name in ("prompt", "tile", "slot", "place", "live")
        )
        return RowPlaces(prompt_R, self.length_P, tile_R, slot_R, place_R, live_R)

    def row_state(self, rows: int) -> RowState:
        return RowState(*(self.of_state(name, rows) for name in ("row", "own", "place", "position", "live")))


_STATE = ("row", "prompt", "tile", "slot", "own", "place", "position", "live")


def _tables(size: BufferSize, device: torch.device) -> ResponseTables:
    shape = (size.table_rows, size.new_tokens)
    alternatives = None
    if size.alternatives:  # one more row, for what `record_in_graph` discards
        alternatives = Alternatives.empty(size.table_rows + 1, NUM_POSITIONS, size.alternatives, device)
    return ResponseTables(
        response_BT=torch.zeros(shape, dtype=torch.long, device=device),
        logp_BT=torch.zeros(shape, device=device),
        entropy_BT=torch.zeros(shape, device=device),
        length_B=torch.zeros(size.table_rows, dtype=torch.long, device=device),
        finished_B=torch.zeros(size.table_rows, dtype=torch.bool, device=device),
        alternatives=alternatives,
    )


_TOKENS_AT_ONCE = 16_384
"""Number of prompt tokens in one pass: enough to use the whole GPU, with little memory compared with the weights."""


def prefill(model: PreTrainedModel, buffers: DecodeBuffers, prompts: Sequence[Prompt]) -> None:
    """Compute keys, values and last hidden states of all prompts, in chunks, so that memory does not grow with them."""
    first = 0
    for chunk in chunk_prompts(prompts, _TOKENS_AT_ONCE):
        _prefill_chunk(model, buffers, first, chunk)
        first += len(chunk)


def _prefill_chunk(model: PreTrainedModel, buffers: DecodeBuffers, first: int, prompts: Sequence[Prompt]) -> None:
    """Compute keys, values and last hidden states of a chunk of prompts, the first at index `first` of the buffers."""
    pack = pack_groups([Sequences(prompt) for prompt in prompts], model.device)
    lengths = torch.tensor([group.prompt_length for group in pack.layout.groups], device=model.device)
    prompt_N = torch.arange(first, first + len(prompts), device=model.device).repeat_interleave(lengths)

    def collect(layer: int, key_NKd: Tensor, value_NKd: Tensor) -> None:
        buffers.layers[layer].prompt_keys[prompt_N, :, pack.position_N] = key_NKd
        buffers.layers[layer].prompt_values[prompt_N, :, pack.position_N] = value_NKd

    hidden_ND = packed_hidden(model, pack, collect)
    buffers.length_P[first : first + len(prompts)] = lengths.int()
    buffers.prompt_hidden_PD[first : first + len(prompts)] = hidden_ND[lengths.cumsum(0) - 1]
