"""Segments of responses that consist of several turns: the thinking and the answer of each turn.

Between two turns of the assistant stand tokens that it did not write (tool results, the user's words). Each turn is
split as a response of its own; the thinking of a whole response is the thinking of all its turns. B rows, U turns,
T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from egpo.segments.masks import Segments, opened_by_prompt, segment_masks
from egpo.tags import THINK_TAGS


@dataclass(frozen=True)
class TurnSpan:
    """The columns `start` (included) to `end` (excluded) of a row that one turn sampled.

    `opened`: what stands before the turn ends with the opening thinking tag.
    """

    row: int
    start: int
    end: int
    opened: bool = False


def turn_segments(
    response_BT: Tensor, mask_BT: Tensor, spans: Sequence[TurnSpan], tokenizer: Any, tags: Sequence[str] = THINK_TAGS
) -> Segments:
    """Locate the segments of each turn, and return those of all turns of a row together."""
    device, shape = response_BT.device, mask_BT.shape
    thinking_BT, answer_BT = (torch.zeros(shape, dtype=torch.bool, device=device) for _ in range(2))
    if not spans:
        return Segments(thinking_BT, answer_BT, mask_BT)
    longest = max(span.end - span.start for span in spans)
    columns = zip(*((span.row, span.start, span.end) for span in spans), strict=True)
    row_U, start_U, end_U = (torch.tensor(column, device=device) for column in columns)
    column_UT = start_U[:, None] + torch.arange(longest, device=device)
    mask_UT = column_UT < end_U[:, None]
    at = (row_U[:, None].expand_as(column_UT), column_UT.clamp(max=shape[1] - 1))
    opened_U = torch.tensor([span.opened for span in spans], device=device)
    turns = segment_masks(response_BT[at], mask_UT, tokenizer, tags, opened_B=opened_U)
    for whole_BT, found_UT in ((thinking_BT, turns.thinking_BT), (answer_BT, turns.answer_BT)):
        whole_BT[at[0][mask_UT], at[1][mask_UT]] = found_UT[mask_UT]
    return Segments(thinking_BT, answer_BT, mask_BT)


def spans_in(
    response_BT: Tensor, mask_BT: Tensor, opened_B: Tensor, tokenizer: Any, tags: Sequence[str] = THINK_TAGS
) -> list[TurnSpan]:
    """Return the turns of each row: the runs of tokens in the mask, in order.

    `opened_B`: prompts that end with the opening tag, which is what stands before a turn that begins in column 0.
    Before any other turn stand the tokens since the turn before it.
    """
    bounds = [_runs(mask_T) for mask_T in mask_BT.bool().cpu()]
    gaps = [
        (row, before, start)
        for row, runs in enumerate(bounds)
        for before, start in zip([0, *(end for _, end in runs)], [start for start, _ in runs], strict=False)
        if start
    ]
    opened = dict(
        zip(((row, start) for row, _, start in gaps), _opened(response_BT, gaps, tokenizer, tags), strict=True)
    )
    return [
        TurnSpan(row, start, end, opened[row, start] if start else bool(opened_B[row]))
        for row, runs in enumerate(bounds)
        for start, end in runs
    ]


def _runs(mask_T: Tensor) -> list[tuple[int, int]]:
    """Return the first column and the column after the last of each run of tokens in the mask."""
    edge_T = torch.nn.functional.pad(mask_T.int(), (1, 1)).diff()
    return list(zip((edge_T == 1).nonzero()[:, 0].tolist(), (edge_T == -1).nonzero()[:, 0].tolist(), strict=True))


def _opened(
    response_BT: Tensor, gaps: Sequence[tuple[int, int, int]], tokenizer: Any, tags: Sequence[str]
) -> list[bool]:
    if not gaps:
        return []
    tokens = [response_BT[row, start:end].cpu() for row, start, end in gaps]
    token_UT = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    mask_UT = torch.arange(token_UT.shape[1]) < torch.tensor([[len(one)] for one in tokens])
    return [bool(one) for one in opened_by_prompt(token_UT, mask_UT, tokenizer, tags)]
