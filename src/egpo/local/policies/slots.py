"""The key-value cache: rows of slots, allocated once. A row's sequence lies from slot 0 on, whatever its neighbours
hold, so that what a row computes does not depend on them; rows that are done make room in place.

R rows, S slots, K heads of keys, d their width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache

from egpo.local.policies.attention import PackLayout, SlotLayout


class Slots(Cache):  # type: ignore[misc]
    """Filled by one pack of prompts (`collect`, then `spread` to rows), then one token a row at a time."""

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
        """Called by each layer of the model, in order."""
        if not self._spread:
            assert layer_idx == len(self._keys), "a layer called out of its order"
            self._keys.append(key_states)
            self._values.append(value_states)
            return key_states, value_states
        keys, values = self._keys[layer_idx][: self._rows], self._values[layer_idx][: self._rows]
        keys[self._row_R, :, self.position_R] = key_states[:, :, 0]
        values[self._row_R, :, self.position_R] = value_states[:, :, 0]
        return keys[:, :, : self._live], values[:, :, : self._live]

    def spread(self, layout: PackLayout, prompt_R: Sequence[int], max_new: int) -> None:
        """Give row r the keys and values of prompt `prompt_R[r]` of the pack that was just collected, and room for
        `max_new` more tokens."""
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
        """The next slot of every row becomes its place."""
        self.position_R = self.position_R + 1
        self._live = min(self._live + 1, len(self._slot_S))
        past_RS = self._slot_S[: self._live] > self.position_R[:, None]
        bias_RS = torch.zeros(past_RS.shape, dtype=self._keys[0].dtype, device=past_RS.device)
        return SlotLayout(bias_RS.masked_fill_(past_RS, -torch.inf)[:, None, None])

    def keep(self, row_K: Tensor) -> None:
        """Only these rows stay, renumbered in the order given, which puts kept rows where dropped ones were.
        `row_K` holds each row below its own length in place (see `compacted`)."""
        moved = (row_K != torch.arange(len(row_K), device=row_K.device)).nonzero()[:, 0]
        if len(moved):
            for buffer in (*self._keys, *self._values):
                buffer[moved] = buffer[row_K[moved]]
        self.position_R = self.position_R[row_K]
        self._rows = len(row_K)
        self._row_R = self._row_R[: self._rows]
        self._live = int(self.position_R.max()) + 1 if len(row_K) else 0


def compacted(live_R: Tensor) -> Tensor:
    """Which old row each new row takes: a live row stays where it can, and the last live ones fill the gaps.

    >>> compacted(torch.tensor([True, False, True, False, True]))
    tensor([0, 4, 2])
    """
    count = int(live_R.sum())
    row_K = torch.arange(count, device=live_R.device)
    gaps = (~live_R[:count]).nonzero()[:, 0]
    row_K[gaps] = live_R[count:].nonzero()[:, 0] + count
    return row_K


def _spread(packed: Tensor, layout: PackLayout, prompt_R: Sequence[int], num_slots: int) -> Tensor:
    """(1, K, N, d) of a pack to (R, K, S, d), zero past each prompt."""
    _, heads, _, width = packed.shape
    buffer = packed.new_zeros(len(prompt_R), heads, num_slots, width)
    for row, prompt in enumerate(prompt_R):
        group = layout.groups[prompt]
        buffer[row, :, : group.prompt_length] = packed[0, :, group.start : group.responses_start]
    return buffer
