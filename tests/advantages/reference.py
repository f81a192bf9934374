"""The estimators once more, slow and obvious: one row at a time, in Python floats, straight from the formulas."""

import itertools
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


def egpo_calibrated(
    rewards, groups, entropies, correct, lambda_min, lambda_max, eps, sides, normalize=True, recover=0.0
):
    factors = weights(groups, entropies, correct, lambda_min, lambda_max, eps, sides)
    out = []
    for i, (a, w) in enumerate(zip(grpo(rewards, groups, normalize), factors, strict=True)):
        peers = group_rows(groups, i)
        lost = len(peers) > 1 and len({rewards[j] for j in peers}) == 1 and not any(correct[j] for j in peers)
        out.append((-recover if lost and recover else a) * w)
    return out


def edge(rewards, groups, entropies, mean_over, eps, normalize=True):
    out = []
    for i, (a, h) in enumerate(zip(grpo(rewards, groups, normalize), entropies, strict=True)):
        rows = group_rows(groups, i) if mean_over == "group" else range(len(rewards))
        known = [entropies[j] for j in rows if math.isfinite(entropies[j])]
        out.append(a * (math.fsum(known) / len(known)) / (h + eps) if math.isfinite(h) else a)
    return out


def rloo(rewards, groups):
    out = []
    for i, reward in enumerate(rewards):
        others = [rewards[j] for j in group_rows(groups, i) if j != i]
        out.append(reward - math.fsum(others) / len(others) if others else reward)
    return out


def scaled(value, peers, normalize):
    """A value of a group whose rewards differ, divided by their standard deviation."""
    return value / (statistics.stdev(peers) + 1e-6) if normalize else value


def qae(rewards, groups, quantile, normalize=True):
    out = []
    for i, reward in enumerate(rewards):
        peers = sorted(rewards[j] for j in group_rows(groups, i))
        if len(peers) == 1:
            out.append(reward)
        elif peers[0] == peers[-1]:
            out.append(0.0)
        else:
            baseline = next(x for n, x in enumerate(peers, 1) if n >= quantile * len(peers) - 1e-9)
            out.append(scaled(reward - baseline, peers, normalize))
    return out


def canon(rewards, groups, entropies, mu, normalize=True):
    """For entropies that differ within each group; a row without one is compared with the whole group."""
    out = []
    for i, reward in enumerate(rewards):
        rows = group_rows(groups, i)
        peers = [rewards[j] for j in rows]
        known = sorted((j for j in rows if math.isfinite(entropies[j])), key=lambda j: entropies[j])
        if len(peers) == 1:
            out.append(reward)
        elif len(set(peers)) == 1:
            out.append(0.0)
        elif i not in known or len(known) < 2:
            out.append(scaled(reward - statistics.fmean(peers), peers, normalize))
        else:
            lower, upper = known[: len(known) // 2], known[len(known) // 2 :]
            own, other = (lower, upper) if i in lower else (upper, lower)
            means = [statistics.fmean(rewards[j] for j in half) for half in (own, other)]
            out.append(scaled(mu * (reward - means[1]) + (1 - mu) * (reward - means[0]), peers, normalize))
    return out


def pass_at_k(rewards, groups, k, normalize=True):
    """Every subset of k rows, one after the other."""
    out = []
    for i, reward in enumerate(rewards):
        rows = group_rows(groups, i)
        if len(rows) == 1:
            out.append(reward)
            continue
        best = {s: max(rewards[j] for j in s) for s in itertools.combinations(rows, k)}
        if len(set(best.values())) <= 1:
            out.append(0.0)
            continue
        value = statistics.fmean(b for s, b in best.items() if i in s) - statistics.fmean(best.values())
        out.append(value / (statistics.pstdev(best.values()) + 1e-6) if normalize else value)
    return out


def shaped(reward, right, weight, peers, alpha1, alpha2):
    """The reward of one response or token, by the weights of those that it shares with; None is not known."""
    known = [w for w in peers if w is not None]
    mean = math.fsum(known) / len(known) if known else 0.0
    share = weight / mean if weight is not None and mean else 1.0
    return alpha1 * reward + alpha2 * share if right else -alpha1 - alpha2 * share


def weight(h, right, eps):
    return None if not math.isfinite(h) else h if right else 1 / (h + eps)


def standardised(value, values, normalize):
    if max(values) - min(values) <= 1e-14:
        return 0.0
    centred = value - math.fsum(values) / len(values)
    return centred / (statistics.stdev(values) + 1e-6) if normalize else centred


def compared(groups, correct, i, compare):
    return [j for j in group_rows(groups, i) if compare == "group" or correct[j] == correct[i]]


def grpo_s(rewards, groups, entropies, correct, alpha1, alpha2, compare, eps, normalize=True):
    weights_ = [weight(h, c, eps) for h, c in zip(entropies, correct, strict=True)]
    values = [
        shaped(
            rewards[i], correct[i], weights_[i], [weights_[j] for j in compared(groups, correct, i, "apart")],
            alpha1, alpha2,
        )
        for i in range(len(rewards))
    ]  # fmt: skip
    return [
        standardised(values[i], [values[j] for j in compared(groups, correct, i, compare)], normalize)
        for i in range(len(rewards))
    ]


def gtpo(rewards, groups, tokens, correct, alpha1, alpha2, compare, eps, normalize=True):
    """`tokens`: the entropies of each response, as lists. Return the advantages in the same form."""
    weights_ = [[weight(h, c, eps) for h in row] for row, c in zip(tokens, correct, strict=True)]
    values = []
    for i, row in enumerate(weights_):
        side = compared(groups, correct, i, "apart")
        values.append(
            [
                shaped(
                    rewards[i], correct[i], w, [weights_[j][t] for j in side if t < len(weights_[j])], alpha1, alpha2
                )
                for t, w in enumerate(row)
            ]
        )
    return [
        [standardised(v, [x for j in compared(groups, correct, i, compare) for x in values[j]], normalize) for v in row]
        for i, row in enumerate(values)
    ]


def high_entropy(rewards, groups, tokens, rho, normalize=True):
    """The quantile is linear between two of the sorted entropies; one that is not a number counts as 0."""
    known = [[h if math.isfinite(h) else 0.0 for h in row] for row in tokens]
    flat = sorted(h for row in known for h in row)
    place = (1 - rho) * (len(flat) - 1)
    low = int(place)
    high = min(low + 1, len(flat) - 1)
    threshold = flat[low] + (place - low) * (flat[high] - flat[low]) if flat else 0.0
    return [
        [a if h >= threshold else 0.0 for h in row]
        for a, row in zip(grpo(rewards, groups, normalize), known, strict=True)
    ]


def token_entropy(rewards, groups, tokens, alpha, kappa, normalize=True):
    return [
        [a + min(alpha * (h if math.isfinite(h) else 0.0), abs(a) / kappa) for h in row]
        for a, row in zip(grpo(rewards, groups, normalize), tokens, strict=True)
    ]
