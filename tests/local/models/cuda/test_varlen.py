"""A pack as sequences: each response with its prompt's keys before its own, and the way back for every token."""

from itertools import pairwise

import torch

from egpo.local.models.packs import Sequences, VarlenLayout, pack_groups


def test_a_response_has_its_prompts_keys_and_its_own():
    groups = [Sequences([1, 2], [[3, 4, 5], [6], [7, 8]]), Sequences([9, 10, 11])]
    layout = pack_groups(groups).layout
    varlen = VarlenLayout.of(layout)
    # Tokens of the pack: 1 2 | 3 4 | 7 | 9 10 11. The last one of a response is not in it.
    assert varlen.source_M.tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 4, 5, 6, 7]
    assert varlen.query_starts.tolist() == [0, 2, 4, 5, 8]
    assert varlen.key_starts.tolist() == [0, 2, 6, 9, 12]
    assert (varlen.longest_query, varlen.longest_key) == (3, 4)


def test_every_key_is_listed_under_its_token():
    groups = [Sequences([1] * 5, [[2] * 4, [3] * 7]), Sequences([4] * 3, [[5] * 2])]
    layout = pack_groups(groups).layout
    varlen = VarlenLayout.of(layout)
    bounds = varlen.first_N1.tolist()
    assert len(bounds) == layout.groups[-1].end + 1
    for token, (first, end) in enumerate(pairwise(bounds)):
        keys = varlen.order_M[first:end]
        assert torch.equal(keys, (varlen.source_M == token).nonzero()[:, 0])
