"""Which rows could be measured, and a word when hardly any could."""

import torch
from torch import Tensor

from egpo.advantages.groups import Groups
from egpo.advantages.signals import Metrics, Signals
from egpo.errors import InputError, warn_once

LOW_COVERAGE = 0.05


def measured(signals: Signals, estimator: str, measure: str = "entropy") -> Tensor:
    """The measure per row (float64), NaN where the row has none: an empty segment, or a value that is not finite."""
    value_B = signals.entropy_B if measure == "entropy" else signals.nll_B
    if value_B is None:
        raise InputError(
            f"`{measure}_B` is missing",
            where=f"estimator `{estimator}`",
            fix=f"give Signals({measure}_B=...), the mean {measure} over the segment of each response",
        )
    value_B = value_B.double().masked_fill(~torch.isfinite(value_B), torch.nan)
    _warn_of_low_coverage(value_B, estimator)
    return value_B


def describe(value_B: Tensor, groups: Groups, measure: str, metrics: Metrics) -> None:
    """Coverage, and the mean of the measure over responses and over groups. What has no data is left out."""
    known_B = torch.isfinite(value_B)
    if len(value_B):
        metrics["egpo/segment/coverage"] = float(known_B.double().mean())
    if bool(known_B.any()):
        mean_P = groups.mean_where(known_B, value_B)
        metrics[f"egpo/{measure}/seq_mean"] = float(value_B[known_B].mean())
        metrics[f"egpo/{measure}/group_mean"] = float(mean_P[torch.isfinite(mean_P)].mean())


def _warn_of_low_coverage(value_B: Tensor, estimator: str) -> None:
    """Without a segment every row falls back to GRPO: four published runs did, and nobody noticed."""
    coverage = float(torch.isfinite(value_B).double().mean()) if len(value_B) else 1.0
    if coverage < LOW_COVERAGE:
        warn_once(
            f"coverage of {estimator}",
            f"estimator `{estimator}`: {coverage:.0%} of {len(value_B)} responses have the segment it measures, "
            "so it acts as grpo; check the tag pair, and tell segment_masks which prompts open the tag (opened_B)",
        )
