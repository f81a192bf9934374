"""The learning rate, a pure function of where the run stands: nothing to save, nothing to restore."""

import math

from egpo.config.sections.update import Optimization


def learning_rate(settings: Optimization, step: int, total: int) -> float:
    """At `step` (from 0) of `total`. A step is a batch of rollouts, as in verl: its optimizer steps share one rate.

        warm-up    lr * (step + 1) / (warmup + 1)           step < warmup; the first step is not lost at 0
        constant   lr
        linear     lr * (1 - x)                             x = (step - warmup) / (total - warmup)
        cosine     lr * (1 + cos(pi x)) / 2

    The last step is the last one above 0. From `total` on, linear and cosine stay at 0.
    """
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / (settings.warmup_steps + 1)
    x = min(1.0, (step - settings.warmup_steps) / max(1, total - settings.warmup_steps))
    if settings.schedule == "linear":
        return settings.lr * (1 - x)
    if settings.schedule == "cosine":
        return settings.lr * (1 + math.cos(math.pi * x)) / 2
    return settings.lr
