"""A key-value cache that the decoding kernel reads and writes: one call a token for all layers.

A prompt's keys stand once, whatever number of rows answer it. Keys lie in blocks of 16 slots (P, K, slots / 16, d, 16),
values slot by slot (P, K, slots, d); rows' own tokens likewise. R rows, P prompts, K heads of keys, d their width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from egpo.local.policies.attention import PackLayout
from egpo.local.policies.lean.decoding import BLOCK, Decoding, Stores
from egpo.native.library import address, kernels

_MOST_HUGE = 1 << 28
"""Bytes of a cache in pages of 2 MiB: the first token takes all of them, and of a large cache most is never written."""


class BlockSlots:
    """Filled by one pack of prompts (`collect` in each layer, then `spread`), then one token a row at a time."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._collected: list[tuple[Tensor, Tensor]] = []
        self._own = 0
        self.position_R = torch.empty(0, dtype=torch.long)

    def collect(self, key_NKd: Tensor, value_NKd: Tensor) -> None:
        """Of the next layer."""
        self._collected.append((key_NKd, value_NKd))

    def spread(self, layout: PackLayout, prompt_R: Sequence[int], max_new: int) -> None:
        """Row r goes on from prompt `prompt_R[r]` of the pack that was just collected, for `max_new` tokens at most."""
        self._length_P = torch.tensor([group.prompt_length for group in layout.groups])
        self._prompt_R = torch.tensor(prompt_R)
        self.position_R = self._length_P[self._prompt_R] - 1
        longest = int(self._length_P.max())
        self._slots = (_whole_blocks(longest), _whole_blocks(max_new))
        own = self._own_slots(len(prompt_R), *self._collected[0][0].shape[1:])
        self._stores = [
            self._stores_of(layout, *pair, *slots) for pair, slots in zip(self._collected, own, strict=True)
        ]
        self._collected.clear()
        self._decoding = Decoding(self._model, self._stores, longest + max_new)

    def next_hidden(self, token_R: Tensor) -> Tensor:
        """(R, D): one more token of every row."""
        # The kernel writes where it is told to, past the end too.
        assert self._own < self._slots[1], "more tokens than there is room for"
        assert token_R.dtype == torch.long, "not int64"
        assert token_R.shape == self.position_R.shape, "not one token a row"
        self.position_R = self.position_R + 1
        self._own += 1
        rows = (token_R.contiguous(), self.position_R, self._prompt_R, self._length_P)
        return self._decoding.step(rows, len(token_R), self._own, self._slots)

    def keep(self, row_K: Tensor) -> None:
        """Only these rows stay, renumbered in the order given (see `slots.compacted`)."""
        moved = (row_K != torch.arange(len(row_K))).nonzero()[:, 0]
        used = _whole_blocks(self._own)
        if len(moved):
            for store in self._stores:
                store.keys[moved, :, : used // BLOCK] = store.keys[row_K[moved], :, : used // BLOCK]
                store.values[moved, :, :used] = store.values[row_K[moved], :, :used]
        self.position_R, self._prompt_R = self.position_R[row_K], self._prompt_R[row_K]

    def _own_slots(self, rows: int, heads: int, width: int) -> Tensor:
        """(layers, 2, rows, K, slots, d): keys and values. A slot is never read before it is written."""
        own = torch.empty(len(self._collected), 2, rows, heads, self._slots[1], width)
        if own.nbytes <= _MOST_HUGE:
            kernels().use_huge_pages(address(own), own.nbytes)
        return own

    def _stores_of(
        self, layout: PackLayout, key_NKd: Tensor, value_NKd: Tensor, keys_RKSd: Tensor, values_RKSd: Tensor
    ) -> Stores:
        keys_PSKd, values_PSKd = (_rectangle(tensor, layout, self._slots[0]) for tensor in (key_NKd, value_NKd))
        rows, heads, slots, width = keys_RKSd.shape
        return Stores(
            prompt_keys=_in_blocks(keys_PSKd),
            prompt_values=values_PSKd.transpose(1, 2).contiguous(),
            keys=keys_RKSd.view(rows, heads, slots // BLOCK, width, BLOCK),
            values=values_RKSd,
        )


def _in_blocks(keys_PSKd: Tensor) -> Tensor:
    """(P, K, S / 16, d, 16)."""
    prompts, slots, heads, width = keys_PSKd.shape
    return keys_PSKd.view(prompts, slots // BLOCK, BLOCK, heads, width).permute(0, 3, 1, 4, 2).contiguous()


def _whole_blocks(num_slots: int) -> int:
    return -(-num_slots // BLOCK) * BLOCK


def _rectangle(packed_NKd: Tensor, layout: PackLayout, num_slots: int) -> Tensor:
    """(P, slots, K, d), zero past each prompt."""
    rectangle = packed_NKd.new_zeros(len(layout.groups), num_slots, *packed_NKd.shape[1:])
    for place, group in enumerate(layout.groups):
        rectangle[place, : group.prompt_length] = packed_NKd[group.start : group.responses_start]
    return rectangle
