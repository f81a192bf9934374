"""A key-value cache in which a prompt's keys stand once, whatever number of rows answer it, and are read once a token.

Rows begin together, so every row has as many tokens of its own. The prompts' part of attention runs over a rectangle of
cells, group by group; the rows' own part over rows as they lie. R rows, P prompts, L the longest of them, G the rows of
the largest group, K heads of keys, r queries to one of them, d their width, T tokens of a row's own.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from egpo.local.policies.attention import PackLayout


class GroupSlots:
    """Filled by one pack of prompts (`collect` in each layer, then `spread`), then one token a row at a time."""

    def __init__(self) -> None:
        self._prompt_keys: list[Tensor] = []
        self._prompt_values: list[Tensor] = []
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._own = 0
        self.position_R = torch.empty(0, dtype=torch.long)

    def collect(self, key_NKd: Tensor, value_NKd: Tensor) -> None:
        """Of the next layer."""
        self._prompt_keys.append(key_NKd)
        self._prompt_values.append(value_NKd)

    def spread(self, layout: PackLayout, prompt_R: Sequence[int], max_new: int) -> None:
        """Row r goes on from prompt `prompt_R[r]` of the pack that was just collected, for `max_new` tokens at most."""
        length_P = torch.tensor([group.prompt_length for group in layout.groups])
        _, heads, width = self._prompt_keys[0].shape
        self._prompt_keys = [_rectangle(keys, layout) for keys in self._prompt_keys]
        self._prompt_values = [_rectangle(values, layout) for values in self._prompt_values]
        # Never read before it is written, unlike slots of rows that differ in length.
        room = (len(prompt_R), heads, max_new, width)
        self._keys = [keys.new_empty(room) for keys in self._prompt_keys]
        self._values = [values.new_empty(room) for values in self._prompt_values]
        past_PL = torch.arange(int(length_P.max())) >= length_P[:, None]
        self._bias_P11L = torch.zeros(past_PL.shape).masked_fill_(past_PL, -torch.inf)[:, None, None]
        self._prompt_R = torch.tensor(prompt_R)
        self.position_R = length_P[self._prompt_R] - 1
        self._place_rows()

    def open_next(self) -> None:
        """Room for one more token of every row."""
        self.position_R = self.position_R + 1
        self._own += 1

    def attend(self, layer: int, query_RHd: Tensor, key_RKd: Tensor, value_RKd: Tensor, scale: float) -> Tensor:
        """(R, H * d): every row's new token over its prompt, its own tokens and itself."""
        keys, values = self._written(self._keys[layer], key_RKd), self._written(self._values[layer], value_RKd)
        prompt_keys, prompt_values = self._prompt_keys[layer], self._prompt_values[layer]
        rows, heads, width = query_RHd.shape
        num_prompts, shared, longest, _ = prompt_keys.shape
        query = (query_RHd * scale).view(rows * shared, heads // shared, width)
        cells = query.index_select(0, self._cells).view(num_prompts, shared, -1, width)
        scores = (cells @ prompt_keys.transpose(-1, -2)).add_(self._bias_P11L)
        scores = scores.view(-1, heads // shared, longest).index_select(0, self._places)
        scores = torch.cat([scores, torch.bmm(query, keys.transpose(-1, -2))], dim=-1)
        weights = torch.softmax(scores, dim=-1)
        cells = weights[..., :longest].index_select(0, self._cells).view(num_prompts, shared, -1, longest)
        out = (cells @ prompt_values).view(-1, heads // shared, width).index_select(0, self._places)
        return out.baddbmm_(weights[..., longest:], values).view(rows, heads * width)

    def keep(self, row_K: Tensor) -> None:
        """Only these rows stay, renumbered in the order given (see `slots.compacted`)."""
        moved = (row_K != torch.arange(len(row_K))).nonzero()[:, 0]
        if len(moved):
            for buffer in (*self._keys, *self._values):
                buffer[moved, :, : self._own] = buffer[row_K[moved], :, : self._own]
        self.position_R, self._prompt_R = self.position_R[row_K], self._prompt_R[row_K]
        if len(row_K):
            self._drop_prompts()
            self._place_rows()

    def _written(self, buffer: Tensor, new_RKd: Tensor) -> Tensor:
        """(R * K, T, d): the rows' own tokens, with the new one in its place."""
        own = buffer[: len(new_RKd), :, : self._own]
        own[:, :, -1] = new_RKd
        return own.flatten(0, 1)

    def _drop_prompts(self) -> None:
        """Those that no row goes on from."""
        live, prompt_R = torch.unique(self._prompt_R, return_inverse=True)
        if len(live) < len(self._bias_P11L):
            self._prompt_keys = [keys[live] for keys in self._prompt_keys]
            self._prompt_values = [values[live] for values in self._prompt_values]
            self._bias_P11L, self._prompt_R = self._bias_P11L[live], prompt_R

    def _place_rows(self) -> None:
        """The rectangle: which row and head each of the P * K * G cells holds, and which cell each of the R * K is in.
        A cell of no row repeats one, and is not read."""
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
    """(P, K, L, d), zero past each prompt."""
    parts = [packed_NKd[group.start : group.responses_start] for group in layout.groups]
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).transpose(1, 2).contiguous()
