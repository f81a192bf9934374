"""What a step logs besides verl's own metrics, under the names that every engine of ours uses. B responses."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from egpo.advantages.signals import Metrics
from egpo.rewards.shares import shares_of
from egpo.verl.measures import Measures
from egpo.verl.rows import Rows


def step_metrics(rows: Rows, measures: Measures) -> Metrics:
    """Entropy by segment, and what the reward said. A figure without data is left out."""
    return {**_token_entropy(rows), **_entropies(measures), **_verdicts(rows)}


def cut_off(tags: Sequence[Mapping[str, Any]], longest: int) -> Metrics:
    """The share of responses that reached the longest length. verl's own figure of this name counts those that are as
    long as the longest of the batch: one at least, always."""
    lengths = [tag["response_len"] for tag in tags if not tag.get("is_padding", False)]
    return (
        {"response_length/clip_ratio": sum(length >= longest for length in lengths) / len(lengths)} if lengths else {}
    )


def _token_entropy(rows: Rows) -> Metrics:
    """Over all tokens alike. verl's own figure of this name follows `loss_agg_mode`: under `seq-mean-token-sum-norm` it
    falls when responses become shorter."""
    entropy_M = rows.entropy_BT[rows.mask_BT]
    return {"actor/entropy": float(entropy_M.mean())} if len(entropy_M) else {}


def _entropies(measures: Measures) -> Metrics:
    """The mean of the responses that have the segment."""
    means = {name: entropy_B.nanmean() for name, entropy_B in measures.entropy.items()}
    return {f"entropy/{name}": float(mean) for name, mean in means.items() if not bool(mean.isnan())}


def _verdicts(rows: Rows) -> Metrics:
    """Accuracy over what could be judged: a checker's own failure is no wrong answer."""
    judged_B, correct_B = ~rows.failed_B, rows.correct_B
    metrics: Metrics = {"reward/error_frac": 1 - float(judged_B.double().mean())}
    if correct_B is not None and bool(judged_B.any()):
        metrics["critic/acc/mean"] = float(correct_B[judged_B].double().mean())
        metrics |= _groups(rows, judged_B, correct_B)
    reasons = [str(known["reason"]) for known in rows.information if "reason" in known]
    return metrics | {f"reward/reason/{name}": share for name, share in shares_of(reasons).items()}


def _groups(rows: Rows, judged_B: Tensor, correct_B: Tensor) -> Metrics:
    """Over the groups in which something was judged."""
    right: dict[str, list[bool]] = {}
    for group, judged, correct in zip(rows.groups, judged_B.tolist(), correct_B.tolist(), strict=True):
        if judged:
            right.setdefault(group, []).append(correct)
    return {
        "groups/all_right_frac": sum(map(all, right.values())) / len(right),
        "groups/none_right_frac": sum(not any(one) for one in right.values()) / len(right),
    }
