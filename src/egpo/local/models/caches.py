"""Key-value caches for sampling: filled by one pack of prompts, then by one token per row at a time.

Tensor suffixes: R rows, P prompts, S slots, K heads of keys, d the width of a head, T sampled tokens of a row. A slot
is the memory of one token. The results of a row do not depend on the other rows; rows that have ended are dropped in
place (`keep`), and rows that wait for something outside repeat their last token (`hold`).

    Slots        for transformers' layers: each row holds its prompt and its own tokens
    BlockSlots   for the CPU layers with the C kernel: one call per token for all layers
    GroupSlots   for the CPU layers through torch: each prompt is held once for all its rows
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from egpo.local.models.attention import SlotLayout
from egpo.local.models.cpu_decoder import BLOCK, LayerSlots, TokenStep
from egpo.local.models.packs import PackLayout
from egpo.native.library import address, kernels


class Slots(Cache):  # type: ignore[misc]
    """The cache of transformers' layers. A row's sequence starts at slot 0, whatever the length of the other rows."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._spread = False
        self._rows = self._live = 0
        self.position_R = torch.empty(0, dtype=torch.long)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values of one layer, and return all keys and values of it. Layers call this in order."""
        if not self._spread:
            assert layer_idx == len(self._keys), "layers must be called in order"
            self._keys.append(key_states)
            self._values.append(value_states)
            return key_states, value_states
        keys, values = self._keys[layer_idx][: self._rows], self._values[layer_idx][: self._rows]
        keys[self._row_R, :, self.position_R] = key_states[:, :, 0]
        values[self._row_R, :, self.position_R] = value_states[:, :, 0]
        return keys[:, :, : self._live], values[:, :, : self._live]

    def spread(self, layout: PackLayout, prompt_R: Sequence[int], max_new: int) -> None:
        """Copy the keys and values of prompt `prompt_R[r]` of the pack to row r, with slots for `max_new` tokens."""
        lengths = [layout.groups[prompt].prompt_length for prompt in prompt_R]
        self._rows, self._live, num_slots = len(prompt_R), max(lengths), max(lengths) + max_new
        self._keys = [_spread(keys, layout, prompt_R, num_slots) for keys in self._keys]
        self._values = [_spread(values, layout, prompt_R, num_slots) for values in self._values]
        device = self._keys[0].device
        self.position_R = torch.tensor(lengths, device=device) - 1
        self._row_R = torch.arange(self._rows, device=device)
        self._slot_S = torch.arange(num_slots, device=device)
        self._spread = True

    def open_next(self) -> SlotLayout:
        """Advance every row to its next slot, and return the layout of attention over the slots filled so far."""
        self.position_R = self.position_R + 1
        self._live = min(self._live + 1, len(self._slot_S))
        past_RS = self._slot_S[: self._live] > self.position_R[:, None]
        bias_RS = torch.zeros(past_RS.shape, dtype=self._keys[0].dtype, device=past_RS.device)
        return SlotLayout(bias_RS.masked_fill_(past_RS, -torch.inf)[:, None, None])

    def hold(self, waiting_R: Tensor) -> None:
        """Let the next token of these rows replace their last one, instead of following it."""
        self.position_R = self.position_R - waiting_R.long()

    def keep(self, row_K: Tensor) -> None:
        """Keep only the rows `row_K`, a result of `compacted`: row `row_K[i]` becomes row i."""
        moved = (row_K != torch.arange(len(row_K), device=row_K.device)).nonzero()[:, 0]
        if len(moved):
            for buffer in (*self._keys, *self._values):
                buffer[moved] = buffer[row_K[moved]]
        self.position_R = self.position_R[row_K]
        self._rows = len(row_K)
        self._row_R = self._row_R[: self._rows]
        self._live = int(self.position_R.max()) + 1 if len(row_K) else 0


def compacted(live_R: Tensor) -> Tensor:
    """Return the old number of each remaining row: rows keep their number if possible, and the last rows fill the gaps.

    >>> compacted(torch.tensor([True, False, True, False, True]))
    tensor([0, 4, 2])
    """
    count = int(live_R.sum())
    row_K = torch.arange(count, device=live_R.device)
    gaps = (~live_R[:count]).nonzero()[:, 0]
    row_K[gaps] = live_R[count:].nonzero()[:, 0] + count
    return row_K


def _spread(packed: Tensor, layout: PackLayout, prompt_R: Sequence[int], num_slots: int) -> Tensor:
    """Copy (1, K, N, d) of a pack to rows (R, K, S, d), with zeros past each prompt."""
    _, heads, _, width = packed.shape
    buffer = packed.new_zeros(len(prompt_R), heads, num_slots, width)
    for row, prompt in enumerate(prompt_R):
        group = layout.groups[prompt]
        buffer[row, :, : group.prompt_length] = packed[0, :, group.start : group.responses_start]
    return buffer


_MOST_HUGE_BYTES = 1 << 28
"""Largest cache for which pages of 2 MiB are used: the first token allocates all pages, and most of a larger cache is
never written."""


class BlockSlots:
    """The cache that the C kernel reads and writes. A prompt's keys are stored once for all its rows.

    Keys are stored in blocks of 16 slots, (P, K, S / 16, d, 16); values slot by slot, (P, K, S, d). Those of rows' own
    tokens have the same layout. To fill the cache, call `collect` in each layer, then `spread`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._collected: list[tuple[Tensor, Tensor]] = []
        self._own_length = 0
        self.position_R = torch.empty(0, dtype=torch.long)

    def collect(self, key_NKd: Tensor, value_NKd: Tensor) -> None:
        """Store the prompts' keys and values of one layer. Call this once per layer, in order."""
        self._collected.append((key_NKd, value_NKd))

    def spread(self, layout: PackLayout, prompt_R: Sequence[int], max_new: int) -> None:
        """Start row r after prompt `prompt_R[r]` of the collected pack, with slots for `max_new` tokens."""
        self._length_P = torch.tensor([group.prompt_length for group in layout.groups])
        self._prompt_R = torch.tensor(prompt_R)
        self.position_R = self._length_P[self._prompt_R] - 1
        longest = int(self._length_P.max())
        self._slots = (_whole_blocks(longest), _whole_blocks(max_new))
        own = self._own_slots(len(prompt_R), *self._collected[0][0].shape[1:])
        self._layers = [
            self._layer_slots(layout, *pair, *slots) for pair, slots in zip(self._collected, own, strict=True)
        ]
        self._collected.clear()
        self._token_step = TokenStep(self._model, self._layers, longest + max_new)

    def next_hidden(self, token_R: Tensor) -> Tensor:
        """Append one token to every row, and return their hidden states (R, D)."""
        self.position_R = self.position_R + 1
        self._own_length = 1 + int((self.position_R - self._length_P[self._prompt_R]).max())
        # The kernel does not check bounds.
        assert self._own_length <= self._slots[1], "all slots are full"
        assert token_R.dtype == torch.long, "tokens must be int64"
        assert token_R.shape == self.position_R.shape, "must be one token per row"
        rows = (token_R.contiguous(), self.position_R, self._prompt_R, self._length_P)
        return self._token_step.step(rows, len(token_R), self._slots)

    def hold(self, waiting_R: Tensor) -> None:
        """Let the next token of these rows replace their last one, instead of following it."""
        self.position_R = self.position_R - waiting_R.long()

    def keep(self, row_K: Tensor) -> None:
        """Keep only the rows `row_K`, a result of `compacted`: row `row_K[i]` becomes row i."""
        moved = (row_K != torch.arange(len(row_K))).nonzero()[:, 0]
        used = _whole_blocks(self._own_length)
        if len(moved):
            for layer in self._layers:
                layer.keys[moved, :, : used // BLOCK] = layer.keys[row_K[moved], :, : used // BLOCK]
                layer.values[moved, :, :used] = layer.values[row_K[moved], :, :used]
        self.position_R, self._prompt_R = self.position_R[row_K], self._prompt_R[row_K]

    def _own_slots(self, rows: int, heads: int, width: int) -> Tensor:
        """Return uninitialised keys and values (layers, 2, R, K, S, d). A slot is never read before it is written."""
        own = torch.empty(len(self._collected), 2, rows, heads, self._slots[1], width)
        if own.nbytes <= _MOST_HUGE_BYTES:
            kernels().use_huge_pages(address(own), own.nbytes)
        return own

    def _layer_slots(
        self, layout: PackLayout, key_NKd: Tensor, value_NKd: Tensor, keys_RKSd: Tensor, values_RKSd: Tensor
    ) -> LayerSlots:
        keys_PSKd, values_PSKd = (_block_rectangle(tensor, layout, self._slots[0]) for tensor in (key_NKd, value_NKd))
        rows, heads, slots, width = keys_RKSd.shape
        return LayerSlots(
            prompt_keys=_in_blocks(keys_PSKd),
            prompt_values=values_PSKd.transpose(1, 2).contiguous(),
            keys=keys_RKSd.view(rows, heads, slots // BLOCK, width, BLOCK),
            values=values_RKSd,
        )


def _in_blocks(keys_PSKd: Tensor) -> Tensor:
    """Return keys (P, S, K, d) in blocks of 16 slots (P, K, S / 16, d, 16)."""
    prompts, slots, heads, width = keys_PSKd.shape
    return keys_PSKd.view(prompts, slots // BLOCK, BLOCK, heads, width).permute(0, 3, 1, 4, 2).contiguous()


def _whole_blocks(num_slots: int) -> int:
    return -(-num_slots // BLOCK) * BLOCK


def _block_rectangle(packed_NKd: Tensor, layout: PackLayout, num_slots: int) -> Tensor:
    """Copy a pack's keys or values to (P, S, K, d), with zeros past each prompt."""
    rectangle = packed_NKd.new_zeros(len(layout.groups), num_slots, *packed_NKd.shape[1:])
    for place, group in enumerate(layout.groups):
        rectangle[place, : group.prompt_length] = packed_NKd[group.start : group.responses_start]
    return rectangle


class GroupSlots:
    """The cache of the CPU layers through torch. A prompt's keys are stored and read once for all its rows.

    Attention over prompts runs over a rectangle of
    cells, group by group: P prompts, L tokens of the longest, G rows of the largest group. Attention over rows' own
    tokens runs row by row. To fill the cache, call `collect` in each layer, then `spread`.
    """

    def __init__(self) -> None:
        self._prompt_keys: list[Tensor] = []
        self._prompt_values: list[Tensor] = []
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._own_length = 0
        self._own_bias: Tensor | None = None
        self.position_R = torch.empty(0, dtype=torch.long)

    def collect(self, key_NKd: Tensor, value_NKd: Tensor) -> None:
        """Store the prompts' keys and values of one layer. Call this once per layer, in order."""
        self._prompt_keys.append(key_NKd)
        self._prompt_values.append(value_NKd)

    def spread(self, layout: PackLayout, prompt_R: Sequence[int], max_new: int) -> None:
        """Start row r after prompt `prompt_R[r]` of the collected pack, with slots for `max_new` tokens."""
        length_P = torch.tensor([group.prompt_length for group in layout.groups])
        _, heads, width = self._prompt_keys[0].shape
        self._prompt_keys = [_rectangle(keys, layout) for keys in self._prompt_keys]
        self._prompt_values = [_rectangle(values, layout) for values in self._prompt_values]
        # Zeros: slots past the end of a row are read where rows differ in length, with weight 0.
        shape = (len(prompt_R), heads, max_new, width)
        self._keys = [keys.new_zeros(shape) for keys in self._prompt_keys]
        self._values = [values.new_zeros(shape) for values in self._prompt_values]
        past_PL = torch.arange(int(length_P.max())) >= length_P[:, None]
        self._bias_P11L = torch.zeros(past_PL.shape).masked_fill_(past_PL, -torch.inf)[:, None, None]
        self._prompt_R = torch.tensor(prompt_R)
        self.position_R = length_P[self._prompt_R] - 1
        self._newest_R = torch.full((len(prompt_R),), -1)
        self._place_rows()

    def open_next(self) -> None:
        """Advance every row to its next slot."""
        self.position_R, self._newest_R = self.position_R + 1, self._newest_R + 1
        self._own_length = 1 + int(self._newest_R.max())
        past_RT = torch.arange(self._own_length) > self._newest_R[:, None]
        self._own_bias = None
        if bool(past_RT.any()):  # rows that were held have fewer tokens
            heads = self._prompt_keys[0].shape[1]
            bias_RT = torch.zeros(past_RT.shape).masked_fill_(past_RT, -torch.inf)
            self._own_bias = bias_RT.repeat_interleave(heads, dim=0)[:, None]

    def hold(self, waiting_R: Tensor) -> None:
        """Let the next token of these rows replace their last one, instead of following it."""
        self.position_R, self._newest_R = self.position_R - waiting_R.long(), self._newest_R - waiting_R.long()

    def attend(self, layer: int, query_RHd: Tensor, key_RKd: Tensor, value_RKd: Tensor, scale: float) -> Tensor:
        """Return the attention of every row's new token over its prompt and its own tokens (R, H * d)."""
        keys, values = self._written(self._keys[layer], key_RKd), self._written(self._values[layer], value_RKd)
        prompt_keys, prompt_values = self._prompt_keys[layer], self._prompt_values[layer]
        rows, heads, width = query_RHd.shape
        num_prompts, shared, longest, _ = prompt_keys.shape
        query = (query_RHd * scale).view(rows * shared, heads // shared, width)
        cells = query.index_select(0, self._cells).view(num_prompts, shared, -1, width)
        scores = (cells @ prompt_keys.transpose(-1, -2)).add_(self._bias_P11L)
        scores = scores.view(-1, heads // shared, longest).index_select(0, self._places)
        own_scores = torch.bmm(query, keys.transpose(-1, -2))
        if self._own_bias is not None:
            own_scores = own_scores.add_(self._own_bias)
        scores = torch.cat([scores, own_scores], dim=-1)
        weights = torch.softmax(scores, dim=-1)
        cells = weights[..., :longest].index_select(0, self._cells).view(num_prompts, shared, -1, longest)
        out = (cells @ prompt_values).view(-1, heads // shared, width).index_select(0, self._places)
        return out.baddbmm_(weights[..., longest:], values).view(rows, heads * width)

    def keep(self, row_K: Tensor) -> None:
        """Keep only the rows `row_K`, a result of `compacted`: row `row_K[i]` becomes row i."""
        moved = (row_K != torch.arange(len(row_K))).nonzero()[:, 0]
        if len(moved):
            for buffer in (*self._keys, *self._values):
                buffer[moved, :, : self._own_length] = buffer[row_K[moved], :, : self._own_length]
        self.position_R, self._prompt_R = self.position_R[row_K], self._prompt_R[row_K]
        self._newest_R = self._newest_R[row_K]
        if len(row_K):
            self._drop_prompts()
            self._place_rows()

    def _written(self, buffer: Tensor, new_RKd: Tensor) -> Tensor:
        """Store the keys or values of the new tokens; return those of all tokens after the prompts (R * K, T, d)."""
        rows = len(new_RKd)
        buffer[torch.arange(rows), :, self._newest_R] = new_RKd
        return buffer[:rows, :, : self._own_length].flatten(0, 1)

    def _drop_prompts(self) -> None:
        """Drop prompts without rows."""
        live, prompt_R = torch.unique(self._prompt_R, return_inverse=True)
        if len(live) < len(self._bias_P11L):
            self._prompt_keys = [keys[live] for keys in self._prompt_keys]
            self._prompt_values = [values[live] for values in self._prompt_values]
            self._bias_P11L, self._prompt_R = self._bias_P11L[live], prompt_R

    def _place_rows(self) -> None:
        """Compute which row and head is in each of the P * K * G cells of the rectangle (`_cells`), and the reverse.

        The reverse is the cell of each of the R * K rows and heads (`_places`). An empty cell repeats a row, and is not
        read.
        """
        heads, (rows,) = self._prompt_keys[0].shape[1], self._prompt_R.shape
        order = self._prompt_R.argsort(stable=True)
        size_P = self._prompt_R.bincount(minlength=len(self._bias_P11L))
        within_R = torch.empty_like(order)
        within_R[order] = torch.arange(rows) - (size_P.cumsum(0) - size_P).repeat_interleave(size_P)
        group, head_K = int(size_P.max()), torch.arange(heads)
        self._places = ((self._prompt_R[:, None] * heads + head_K) * group + within_R[:, None]).flatten()
        self._cells = torch.zeros(len(size_P) * heads * group, dtype=torch.long)
        self._cells[self._places] = torch.arange(rows * heads)


def _rectangle(packed_NKd: Tensor, layout: PackLayout) -> Tensor:
    """Copy a pack's keys or values to (P, K, L, d), with zeros past each prompt."""
    parts = [packed_NKd[group.start : group.responses_start] for group in layout.groups]
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).transpose(1, 2).contiguous()
