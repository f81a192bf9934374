"""What a supervised run trains on and what it is evaluated on. E examples."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from egpo.config.sft import SftData
from egpo.data import split_rows
from egpo.errors import InputError
from egpo.local.policies.policy import Policy
from egpo.local.sft.examples import Examples
from egpo.local.sft.reading import read_examples


@dataclass(frozen=True, eq=False)
class TrainingData:
    """`num_rows` and `dropped` are of the training file."""

    train: Examples
    evaluation: Examples | None
    num_rows: int
    dropped: Counter[str]


def load_data(settings: SftData, policy: Policy, seed: int) -> TrainingData:
    """Read, tokenised and split; nothing is read again while training."""
    reading = read_examples(Path(settings.path), policy, settings.max_tokens)
    train, evaluation = reading.examples, None
    if settings.eval_path is not None:
        evaluation = read_examples(Path(settings.eval_path), policy, settings.max_tokens).examples
    elif settings.eval_frac:
        train, evaluation = _split(train, settings.eval_frac, seed)
    return TrainingData(train, evaluation, reading.num_rows, reading.dropped)


def _split(examples: Examples, eval_frac: float, seed: int) -> tuple[Examples, Examples]:
    """By rows of the file: answers of one conversation stay on one side."""
    rows = np.unique(examples.row_E.numpy())
    if len(rows) < 2:
        raise InputError("one conversation cannot be split", where="data.eval_frac", fix="give more, or data.eval_path")
    held_out = torch.isin(examples.row_E, torch.from_numpy(split_rows(rows, eval_frac, seed).test))
    return examples.take((~held_out).nonzero()[:, 0]), examples.take(held_out.nonzero()[:, 0])
