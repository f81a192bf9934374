"""Segments of several turns: each turn is split as a response of its own. B rows, T tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egpo.segments import segment_masks
from egpo.segments.turns import TurnSpan, spans_in, turn_segments
from tests.local.conftest import build_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.*have neither:egpo.errors.EgpoWarning")
TOKENIZER = build_tokenizer()
OPEN, CLOSE = (TOKENIZER.convert_tokens_to_ids(tag) for tag in ("<think>", "</think>"))
PARTS = st.lists(st.sampled_from([OPEN, CLOSE, 40, 41, 42]), min_size=1, max_size=6)
ROWS = st.lists(st.lists(st.tuples(PARTS, PARTS), min_size=1, max_size=4), min_size=1, max_size=3)
"""Rows of turns, each with the tokens that follow it."""


def table(rows):
    """Token ids and mask of rows whose turns are followed by tokens of others, and the places of the turns."""
    tokens = [[token for turn, gap in row for token in (*turn, *gap)] for row in rows]
    masks = [[own for turn, gap in row for own in (*[True] * len(turn), *[False] * len(gap))] for row in rows]
    padded = [
        torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, one)), batch_first=True) for one in (tokens, masks)
    ]
    return padded[0], padded[1].bool()


@settings(deadline=None)
@given(ROWS, st.lists(st.booleans(), min_size=3, max_size=3))
def test_each_turn_is_split_as_a_response_of_its_own(rows, opened):
    response_BT, mask_BT = table(rows)
    spans = spans_in(response_BT, mask_BT, torch.tensor(opened[: len(rows)]), TOKENIZER)
    found = turn_segments(response_BT, mask_BT, spans, TOKENIZER)
    place = iter(spans)
    for row, turns in enumerate(rows):
        start, was_opened = 0, opened[row]
        for turn, gap in turns:
            end = start + len(turn)
            assert next(place) == TurnSpan(row, start, end, was_opened)
            ids = torch.tensor([turn])
            alone = segment_masks(ids, torch.ones_like(ids), TOKENIZER, opened_B=was_opened)
            assert torch.equal(found.thinking_BT[row, start:end], alone.thinking_BT[0])
            assert torch.equal(found.answer_BT[row, start:end], alone.answer_BT[0])
            start, was_opened = end + len(gap), gap[-1] == OPEN
    assert next(place, None) is None
    assert not ((found.thinking_BT | found.answer_BT) & ~mask_BT).any()
    assert torch.equal(found.response_BT, mask_BT)


def test_a_row_without_turns_has_no_segments():
    response_BT, mask_BT = torch.tensor([[OPEN, 40]]), torch.zeros(1, 2, dtype=torch.bool)
    found = turn_segments(
        response_BT, mask_BT, spans_in(response_BT, mask_BT, torch.tensor([True]), TOKENIZER), TOKENIZER
    )
    assert not (found.thinking_BT | found.answer_BT | found.response_BT).any()
