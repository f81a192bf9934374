"""The estimators once more, slow and obvious: one row at a time, in Python floats, straight from the formulas."""

import math
import statistics

FLOAT32_EPS = 2.0**-23


def group_rows(groups, i):
    return [j for j, g in enumerate(groups) if g == groups[i]]


def grpo(rewards, groups, normalize=True):
    out = []
    for i, reward in enumerate(rewards):
        peers = [rewards[j] for j in group_rows(groups, i)]
        if len(peers) == 1:
            out.append(reward)
        elif max(peers) - min(peers) <= 8 * FLOAT32_EPS * max(abs(max(peers)), abs(min(peers)), 1.0):
            out.append(0.0)
        else:
            centred = reward - math.fsum(peers) / len(peers)
            out.append(centred / (statistics.stdev(peers) + 1e-6) if normalize else centred)
    return out


def egpo(rewards, groups, entropies, lam, alpha, form, normalize=True):
    out = []
    for a, h in zip(grpo(rewards, groups, normalize), entropies, strict=True):
        cap = abs(a) / alpha
        if not math.isfinite(h):
            bonus = 0.0
        elif form == "clip_entropy":
            bonus = lam * max(-cap, min(h, cap))
        else:
            bonus = min(lam * h, cap)
        out.append(a + bonus)
    return out


def weights(groups, entropies, correct, lambda_min, lambda_max, eps, sides):
    out = []
    for i, h in enumerate(entropies):
        peers = [entropies[j] for j in group_rows(groups, i) if math.isfinite(entropies[j])]
        if not math.isfinite(h) or (sides == "positive_only" and not correct[i]):
            out.append(1.0)
            continue
        low, high = lambda_min, lambda_max
        if sides == "asymmetric":
            low, high = (1.0, lambda_max) if correct[i] else (lambda_min, 1.0)
        ratio = (math.fsum(peers) / len(peers)) / (h + eps)
        out.append(max(low, min(ratio, high)))
    return out


def egpo_calibrated(rewards, groups, entropies, correct, lambda_min, lambda_max, eps, sides, normalize=True):
    factors = weights(groups, entropies, correct, lambda_min, lambda_max, eps, sides)
    return [a * w for a, w in zip(grpo(rewards, groups, normalize), factors, strict=True)]
