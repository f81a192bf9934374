"""Measures entropy per segment on verl's batch, and computes our metrics of a step.

Metric names are the same under both engines. In the names of tensors, B is the number of responses, T of tokens, P of
groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from egpo.advantages.signals import Metrics
from egpo.errors import InputError, warn_once
from egpo.rewards.verdict import shares_of
from egpo.runs.metric_table import SAMPLER_DIFF, SAMPLER_DIFF_MAX
from egpo.segments import Segments, mean_over, opened_by_prompt, segment_masks
from egpo.segments.turns import spans_in, turn_segments
from egpo.verl.rows import Rows

SEGMENTS = ("thinking", "answer", "response")


@dataclass(frozen=True, eq=False)
class Measures:
    """Mean entropy and mean NLL of each response, by segment name; NaN for an empty segment.

    `opened_B`: whether the prompt opens the thinking tag. If the tokenizer cannot express the tags, `response` is the
    only segment, and `opened_B` and `segments` are None.
    """

    entropy: dict[str, Tensor]
    nll: dict[str, Tensor]
    opened_B: Tensor | None
    segments: Segments | None = None


def measure(rows: Rows, tokenizer: Any, tags: tuple[str, str] | None) -> Measures:
    """Return mean entropy and mean NLL per segment of each response.

    A response of several turns has tokens of others between them, which are not in the mask: each turn has a thinking
    and an answer, and those of all turns are measured together.
    """
    masks, opened_B, segments = {"response": rows.mask_BT}, None, None
    if tags is not None:
        opened_B = _opened(rows, tokenizer, tags)
        segments = _segments(rows, opened_B, tokenizer, tags)
        masks = {name: segments.named(name) for name in SEGMENTS}
    return Measures(
        entropy={name: mean_over(rows.entropy_BT, mask_BT) for name, mask_BT in masks.items()},
        nll={name: mean_over(-rows.logp_BT, mask_BT) for name, mask_BT in masks.items()},
        opened_B=opened_B,
        segments=segments,
    )


def _segments(rows: Rows, opened_B: Tensor, tokenizer: Any, tags: tuple[str, str]) -> Segments:
    has_holes = bool((rows.mask_BT[:, 1:] & ~rows.mask_BT[:, :-1]).any())
    if not has_holes:
        return segment_masks(rows.response_BT, rows.mask_BT, tokenizer, tags, opened_B=opened_B)
    spans = spans_in(rows.response_BT, rows.mask_BT, opened_B, tokenizer, tags)
    return turn_segments(rows.response_BT, rows.mask_BT, spans, tokenizer, tags)


def _opened(rows: Rows, tokenizer: Any, tags: tuple[str, str]) -> Tensor:
    """Return whether each prompt opens the tag. A prompt equal to the first of its group is not decoded again."""
    row_B, group_B = torch.arange(len(rows.groups)), rows.group_B
    first_P = torch.full((int(group_B.max()) + 1,), len(row_B)).scatter_reduce_(0, group_B, row_B, "amin")
    first_B = first_P[group_B]
    prompt_BS, mask_BS = rows.prompt_BS, rows.prompt_mask_BS
    differs_B = (prompt_BS != prompt_BS[first_B]).any(1) | (mask_BS != mask_BS[first_B]).any(1)
    asked_B = differs_B | (row_B == first_B)
    opened_B = torch.zeros(len(row_B), dtype=torch.bool)
    opened_B[asked_B] = opened_by_prompt(prompt_BS[asked_B], mask_BS[asked_B], tokenizer, tags)
    return torch.where(asked_B, opened_B, opened_B[first_B])


def usable_tags(tags: tuple[str, str], tokenizer: Any, segment: str | None) -> tuple[str, str] | None:
    """Return the tags; None, with a warning, if the tokenizer cannot express them and the estimator needs none.

    InputError if the estimator's `segment` needs them: otherwise the segment would silently be empty.
    """
    try:
        segment_masks(torch.zeros(1, 1).long(), torch.ones(1, 1), tokenizer, tags, opened_B=True)
    except InputError as error:
        if segment in ("thinking", "answer"):
            raise
        warn_once("tags in verl", f"{error.faults[0].what}: entropy is logged for whole responses only")
        return None
    return tags


def step_metrics(rows: Rows, measures: Measures) -> Metrics:
    """Return the metrics of a step: entropies, accuracy and reasons. A metric without data is left out."""
    return {**_token_entropy(rows), **_entropies(measures), **_sampler(rows), **_verdicts(rows)}


def truncated_fraction(tags: Sequence[Mapping[str, Any]], longest: int) -> Metrics:
    """Return the fraction of responses that reached the maximum length, `longest` tokens.

    verl's own metric of this name counts the responses as long as the longest one of the batch, so that it is never 0.
    """
    lengths = [tag["response_len"] for tag in tags if not tag.get("is_padding", False)]
    return (
        {"response_length/clip_ratio": sum(length >= longest for length in lengths) / len(lengths)} if lengths else {}
    )


def corrected_metrics(rows: Rows) -> Metrics:
    """Return metrics of verl's that have another meaning under the embedded engine, as they are there.

    They differ only for episodes, for responses that could not be judged, and under a penalty for long responses.
    """
    return {**_judged_scores(rows), **_penalties(rows), **episode_lengths(rows)}


def _judged_scores(rows: Rows) -> Metrics:
    """Return the scores of the judged responses. verl's own metrics count the others as 0, and contain penalties."""
    verdict_B = rows.verdict_B
    score_M = verdict_B[~rows.failed_B].float()
    same = len(score_M) == len(rows.groups) and torch.equal(verdict_B, rows.score_B)
    return {} if same or not len(score_M) else _spread("critic/score", score_M)


def _penalties(rows: Rows) -> Metrics:
    """Return what verl's reward manager, or the agent loop, subtracted from the scores, if it subtracted anything."""
    penalty_B = (rows.verdict_B - rows.score_B).float()
    return _spread("reward/overlong_penalty", penalty_B) if bool((penalty_B > 1e-6).any()) else {}


def _spread(name: str, value_M: Tensor) -> Metrics:
    spread = {"mean": value_M.mean(), "max": value_M.max(), "min": value_M.min()}
    return {f"{name}/{part}": float(value) for part, value in spread.items()}


def episode_lengths(rows: Rows) -> Metrics:
    """Return the lengths of episodes in sampled tokens, and the fraction of them whose last turn was cut off.

    verl's own metrics of these names count the environment's tokens too. No metrics for single responses.
    """
    if not rows.are_episodes:
        return {}
    length_B = rows.mask_BT.sum(1).float()
    finished = [bool(fields.get("finished", True)) for fields in rows.loop_fields]
    return {
        "response_length/mean": float(length_B.mean()),
        "response_length/max": float(length_B.max()),
        "response_length/min": float(length_B.min()),
        "response_length/clip_ratio": 1 - sum(finished) / len(finished),
    }


def _token_entropy(rows: Rows) -> Metrics:
    """Return the mean entropy over all tokens, each with the same weight.

    verl's own metric of this name follows `loss_agg_mode`: under `seq-mean-token-sum-norm` it falls when responses
    become shorter.
    """
    entropy_M = rows.entropy_BT[rows.mask_BT]
    return {"actor/entropy": float(entropy_M.mean())} if len(entropy_M) else {}


def _sampler(rows: Rows) -> Metrics:
    """Return how far vLLM's log-probabilities are from those that the trainer computed with the same weights.

    There is no clipped fraction: verl's ratios are relative to the trainer's own log-probabilities.
    """
    if rows.sampled_logp_BT is None:
        return {}
    difference_M = (rows.logp_BT - rows.sampled_logp_BT)[rows.mask_BT].abs()
    if not len(difference_M):
        return {}
    return {SAMPLER_DIFF: float(difference_M.mean()), SAMPLER_DIFF_MAX: float(difference_M.max())}


def _entropies(measures: Measures) -> Metrics:
    """Return the mean entropy of each segment, over the responses that have the segment."""
    means = {name: entropy_B.nanmean() for name, entropy_B in measures.entropy.items()}
    return {f"entropy/{name}": float(mean) for name, mean in means.items() if not bool(mean.isnan())}


def _verdicts(rows: Rows) -> Metrics:
    """Return accuracy, failures and reasons. A response that the checker could not judge does not count as wrong."""
    judged_B, correct_B = ~rows.failed_B, rows.correct_B
    metrics: Metrics = {"reward/error_frac": 1 - float(judged_B.double().mean())}
    if correct_B is not None and bool(judged_B.any()):
        metrics["critic/acc/mean"] = float(correct_B[judged_B].double().mean())
        metrics |= _groups(rows, judged_B, correct_B)
    reasons = [str(known["reason"]) for known in rows.information if "reason" in known]
    return metrics | {f"reward/reason/{name}": share for name, share in shares_of(reasons).items()}


def _groups(rows: Rows, judged_B: Tensor, correct_B: Tensor) -> Metrics:
    """Return which fractions of the groups with a judged response have all, and have no, judged responses correct."""
    right: dict[str, list[bool]] = {}
    for group, judged, correct in zip(rows.groups, judged_B.tolist(), correct_B.tolist(), strict=True):
        if judged:
            right.setdefault(group, []).append(correct)
    return {
        "groups/all_right_frac": sum(map(all, right.values())) / len(right),
        "groups/none_right_frac": sum(not any(one) for one in right.values()) / len(right),
    }
