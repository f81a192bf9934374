"""Rows that leave make room in place; those that stay are not moved without need."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from egpo.local.models.caches import compacted


@given(st.lists(st.booleans(), max_size=40))
def test_compaction_keeps_every_live_row_once_and_moves_as_few_as_it_can(live):
    live_R = torch.tensor(live, dtype=torch.bool)
    row_K = compacted(live_R).tolist()
    assert sorted(row_K) == [row for row, is_live in enumerate(live) if is_live]
    moved = [row for place, row in enumerate(row_K) if row != place]
    assert all(row >= len(row_K) for row in moved), "only rows past the new end move"
    assert len(moved) == sum(not is_live for is_live in live[: len(row_K)])
