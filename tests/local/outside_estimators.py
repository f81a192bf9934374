"""Estimators that are not in the package, as a user would write them: one with settings, one plain function."""

from egpo.advantages import Estimator, grpo
from egpo.sections import Fraction, Section, Segment


class DampedSettings(Section):
    strength: Fraction = 0.5
    """0 is grpo; 1 removes the advantage of a response with an entropy of 1 nat."""
    entropy_mode: Segment = "answer"


def _damped(signals, *, strength=0.5, normalize=True, metrics=None):
    """A'[i] = A[i] * (1 - strength * min(H[i], 1)); a response without the segment keeps its advantage."""
    weight_B = 1 - strength * signals.entropy_B.nan_to_num(nan=0.0).clamp(0, 1)
    if metrics is not None:
        metrics["damped/weight/mean"] = float(weight_B.mean())
    return grpo(signals, normalize=normalize, metrics=metrics) * weight_B


damped = Estimator(_damped, DampedSettings, "answer")


def scaled(signals, *, factor=2.0):
    """A plain function: no settings class, no metrics."""
    return grpo(signals) * factor
