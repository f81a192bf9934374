"""Measure a batch and estimate its advantages.

`measure` averages entropy and nll over each segment of each response. `estimate` computes advantages from rewards and
these averages, for the rows that are trained on. Tensor suffixes: P problems, B rows, T tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from egpo.advantages import Signals, estimator_named
from egpo.advantages.signals import Metrics
from egpo.config.schema import Algorithm
from egpo.local.collect import Batch
from egpo.local.models.policy import Policy
from egpo.local.rollouts import Rollouts
from egpo.segments import Segments, mean_over, opened_by_prompt, segment_masks
from egpo.segments.turns import TurnSpan, turn_segments

SEGMENTS = ("thinking", "answer", "response")


@dataclass(frozen=True, eq=False)
class Measures:
    """Mean entropy and negative log-likelihood of each segment of each row.

    Both are CPU tensors with one value per row, keyed by the name of the segment. NaN: the segment is empty.
    """

    segments: Segments
    entropy: dict[str, Tensor]
    nll: dict[str, Tensor]


def measure(policy: Policy, rollouts: Rollouts, tags: tuple[str, str]) -> Measures:
    """Locate the segments of each response, and average entropy and nll over the tokens of each segment.

    If the prompt ends with the opening tag, thinking starts at the first sampled token.
    """
    segments = _episode_segments(policy, rollouts, tags) if rollouts.episodes else _segments(policy, rollouts, tags)
    masks = {name: segments.named(name) for name in SEGMENTS}
    return Measures(
        segments=segments,
        entropy={name: mean_over(rollouts.entropy_BT, mask_BT).cpu() for name, mask_BT in masks.items()},
        nll={name: mean_over(-rollouts.logp_BT, mask_BT).cpu() for name, mask_BT in masks.items()},
    )


def _segments(policy: Policy, rollouts: Rollouts, tags: tuple[str, str]) -> Segments:
    opened_B = _opened(policy, rollouts, tags)[rollouts.problem_B]
    return segment_masks(rollouts.response_BT, rollouts.mask_BT, policy.tokenizer, tags, opened_B=opened_B)


def _episode_segments(policy: Policy, rollouts: Rollouts, tags: tuple[str, str]) -> Segments:
    """Locate the segments of each turn of an episode; a turn's own prompt may open the thinking."""
    spans = [
        TurnSpan(row, *span, opened)
        for row, one in enumerate(rollouts.episodes or ())
        for span, opened in zip(one.turns, one.opened, strict=True)
    ]
    return turn_segments(rollouts.response_BT, rollouts.mask_BT, spans, policy.tokenizer, tags)


def _opened(policy: Policy, rollouts: Rollouts, tags: tuple[str, str]) -> Tensor:
    """Return a mask of the problems whose prompt ends with the opening tag of the thinking segment."""
    tails = [torch.tensor(prompt) for prompt in rollouts.prompts]
    token_PT = torch.nn.utils.rnn.pad_sequence(tails, batch_first=True)
    length_P = torch.tensor([len(prompt) for prompt in rollouts.prompts])
    mask_PT = torch.arange(token_PT.shape[1]) < length_P[:, None]
    return opened_by_prompt(token_PT, mask_PT, policy.tokenizer, tags)


@dataclass(frozen=True, eq=False)
class Estimate:
    """The advantages of a batch.

    `rows`: indices of the rows to train on. `advantage_B` is NaN for all other rows. `metrics`: those that the
    estimator reports. `advantage_BT`: the advantage of each token, if the estimator gives one; `advantage_B` then has
    the mean over each response.
    """

    advantage_B: Tensor
    rows: list[int]
    metrics: Metrics
    advantage_BT: Tensor | None = None

    def trained(self, rollouts: Rollouts, row_B: list[int]) -> Tensor:
        """Return the advantages for the update: one per row, or one per token.

        `rollouts` are the rows of this estimate that are trained on, `row_B` what their `by_turn` returned.
        """
        if self.advantage_BT is None:
            return self.advantage_B[self.rows][row_B]
        here = torch.tensor(self.rows, device=self.advantage_BT.device)
        return rollouts.table_by_turn(self.advantage_BT[here])


def estimate(batch: Batch, measures: Measures, algorithm: Algorithm) -> Estimate:
    """Compute the advantages of the kept rows with the recipe's estimator.

    If no row is kept, all advantages are NaN and there are no metrics.
    """
    metrics: Metrics = {}
    advantage_B = torch.full((len(batch.rollouts),), torch.nan)
    advantage_BT = None
    kept_B, estimator = batch.kept_B, estimator_named(algorithm.estimator)
    if not bool(kept_B.any()):
        return Estimate(advantage_B, [], metrics)
    if estimator.level == "token":
        entropy_BT, mask_BT = batch.rollouts.entropy_BT, batch.rollouts.mask_BT
        here_B = kept_B.to(mask_BT.device)
        signals = _signals(batch, measures, algorithm, mask_BT.device)
        tables = (entropy_BT[here_B], mask_BT[here_B])
        advantage_BT = torch.zeros_like(entropy_BT)
        advantage_BT[here_B] = estimator(signals, *tables, **algorithm.settings, metrics=metrics).to(entropy_BT.dtype)
        advantage_B[kept_B] = mean_over(advantage_BT, mask_BT).float().cpu()[kept_B]
    else:
        signals = _signals(batch, measures, algorithm, batch.reward_B.device)
        advantage_B[kept_B] = estimator(signals, **algorithm.settings, metrics=metrics)
    return Estimate(advantage_B, kept_B.nonzero()[:, 0].tolist(), metrics, advantage_BT)


def _signals(batch: Batch, measures: Measures, algorithm: Algorithm, device: torch.device) -> Signals:
    """Return the inputs of the estimator for the kept rows."""
    kept_B, segment = batch.kept_B, algorithm.segment
    return Signals(
        reward_B=batch.reward_B[kept_B].to(device),
        group_B=batch.rollouts.problem_B[kept_B],
        entropy_B=None if segment is None else measures.entropy[segment][kept_B],
        correct_B=batch.correct_B[kept_B],
        nll_B=None if segment is None else measures.nll[segment][kept_B],
    )
