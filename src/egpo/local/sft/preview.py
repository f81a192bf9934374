"""A preview of the training data: counts, lengths, packing, and one example with its learned tokens."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from egpo.local.sft.batches import cut_by_tokens
from egpo.local.sft.examples import Examples
from egpo.local.sft.sft_run import SftRun


@dataclass(frozen=True)
class Preview:
    """Statistics of the training data.

    `packing_frac`: tokens of the forward passes as a fraction of `micro_tokens`. `lengths`: the shortest, the median
    and the longest example, in tokens.
    """

    num_rows: int
    dropped: dict[str, int]
    num_examples: int
    num_evaluation: int
    num_tokens: int
    learned_frac: float
    lengths: tuple[int, int, int]
    num_steps: int
    packing_frac: float


@dataclass(frozen=True)
class Passage:
    """The text of consecutive tokens that are all learned, or all not learned."""

    text: str
    learned: bool


def preview(run: SftRun) -> Preview:
    data, room, steps = run.data, run.budget.tokens, run.batches
    train, length_E = data.train, data.train.length_E
    parts = [part for step in steps if step.epoch == 0 for part in cut_by_tokens(step.examples, length_E, room)]
    return Preview(
        num_rows=data.num_rows,
        dropped=dict(data.dropped.most_common()),
        num_examples=len(train),
        num_evaluation=len(data.evaluation) if data.evaluation else 0,
        num_tokens=len(train.token_S),
        learned_frac=float(train.learned_S.float().mean()),
        lengths=(int(length_E.min()), int(length_E.median()), int(length_E.max())),
        num_steps=len(steps),
        packing_frac=sum(part.num_tokens for part in parts) / sum(max(room, part.num_tokens) for part in parts),
    )


def passages(examples: Examples, example: int, tokenizer: PreTrainedTokenizerBase) -> list[Passage]:
    """Split the text of an example into passages, which are alternately learned and not learned."""
    place = examples.tokens_of(example)
    tokens, learned = examples.token_S[place], examples.learned_S[place]
    cuts = (learned.diff().nonzero()[:, 0] + 1).tolist()
    sizes = torch.tensor([0, *cuts, len(tokens)]).diff().tolist()
    return [
        Passage(str(tokenizer.decode(run.tolist())), bool(marks[0]))
        for run, marks in zip(torch.split(tokens, sizes), torch.split(learned, sizes), strict=True)
    ]
