"""Pass@k training (Chen et al. 2025, arXiv:2508.10751): advantages of the best of k, in closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from egpo.advantages.grpo import Standing, compare_within_groups
from egpo.advantages.signals import Metrics, Signals
from egpo.errors import warn_once
from egpo.sections import Count, Section, checked

if TYPE_CHECKING:
    from torch import Tensor


class PassAtKSettings(Section):
    """The settings of `pass_at_k`."""

    k: Count = 4
    """Number of responses of which the best one counts; less than the group size (`rollout.n`)."""


def pass_at_k(signals: Signals, *, k: int = 4, normalize: bool = True, metrics: Metrics | None = None) -> Tensor:
    """Return the mean advantage of the subsets of k responses to which a response belongs.

    The reward of a subset S is its highest reward, R(S) = max_{j in S} r[j]. Over all subsets of the group:

        A[i] = (mean_{S with i} R(S) - mean_S R(S)) / (std_S R(S) + 1e-6)        no division if not normalize

    With rewards 0 and 1, n responses and c right ones, rho = 1 - C(n - c, k) / C(n, k) and sigma^2 = rho (1 - rho),
    this is the paper's closed form:

        right:  (1 - rho) / sigma
        wrong:  (1 - rho - C(n - c - 1, k - 1) / C(n - 1, k - 1)) / sigma

    Rewards in between are sorted and weighted by the same binomial coefficients; no subset is drawn. A group in which
    every subset has the same best reward gives exactly 0, as does a group of at most k rows. A group of one row: A = r.
    """
    checked(PassAtKSettings, "estimator `pass_at_k`", k=k)
    standing = compare_within_groups(signals, metrics)
    small_P = (standing.groups.size_P <= k) & ~standing.alone_P & (k > 1)
    _warn_of_small_groups(small_P, k)
    return _best_of(standing, k, small_P, normalize, metrics)


def _best_of(standing: Standing, k: int, small_P: Tensor, normalize: bool, metrics: Metrics | None) -> Tensor:
    import torch

    groups = standing.groups
    order_B = groups.sorted(standing.reward_B)
    index_B, centred_B = groups.index_B[order_B], standing.centred_B[order_B]
    first_P = groups.first_P()
    size_B = groups.size_P[index_B]
    below_B = torch.arange(len(order_B), device=order_B.device) - first_P[index_B]
    # The part of all subsets, and of the subsets with a given row, whose best is the row with `below` rows under it.
    best_B = _ratio(below_B, k - 1, size_B, k)
    own_B = _ratio(below_B, k - 1, size_B - 1, k - 1)
    beside_B = _ratio(below_B - 1, k - 2, size_B - 1, k - 1) if k > 1 else torch.zeros_like(best_B)

    mean_P = groups.sum(centred_B.new_zeros(len(order_B)).scatter_(0, order_B, best_B * centred_B))
    spread_B = best_B * (centred_B - mean_P[index_B]).square()
    std_P = groups.sum(torch.zeros_like(spread_B).scatter_(0, order_B, spread_B)).sqrt()
    better_B = beside_B * centred_B
    total_P = groups.sum(torch.zeros_like(better_B).scatter_(0, order_B, better_B))
    # The sum over the rows above: the group's total, minus the running sum from the group's first row.
    running_B = better_B.cumsum(0)
    start_P = (running_B - better_B)[first_P] if len(order_B) else total_P
    above_B = total_P[index_B] - (running_B - start_P[index_B])
    value_B = torch.zeros_like(centred_B).scatter_(0, order_B, own_B * centred_B + above_B - mean_P[index_B])

    kth_P = standing.reward_B[order_B][first_P + (groups.size_P - 1).clamp(max=k - 1)]
    same_P = groups.equal(torch.maximum(standing.reward_B, groups.rows(kth_P)), standing.dtype)
    silent_P = small_P | (same_P & ~standing.alone_P)
    if metrics is not None and len(silent_P):
        metrics["egpo/best_of_k/saturated_frac"] = float((silent_P & ~standing.constant_P).double().mean())
    return standing.advantages(value_B.masked_fill(groups.rows(silent_P), 0.0), normalize, std_P)


def _ratio(n_B: Tensor, k: int, n_below_B: Tensor, k_below: int) -> Tensor:
    """Return C(n, k) / C(n_below, k_below); 0 where n < k or the divisor is 0."""
    log_B = _log_binomial(n_B, k) - _log_binomial(n_below_B, k_below)
    return log_B.exp().masked_fill((n_B < k) | (n_below_B < k_below), 0.0)


def _log_binomial(n_B: Tensor, k: int) -> Tensor:
    n_B = n_B.double().clamp(min=k)
    return (n_B + 1).lgamma() - (n_B - k + 1).lgamma() - n_B.new_tensor(k + 1.0).lgamma()


def _warn_of_small_groups(small_P: Tensor, k: int) -> None:
    if bool(small_P.any()):
        warn_once(
            "groups for pass at k",
            f"{int(small_P.sum())} of {len(small_P)} groups have at most k = {k} responses and no gradient under "
            "`pass_at_k`; sample more responses per problem (`rollout.n`), or lower `k`",
        )
