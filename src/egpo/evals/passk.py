"""pass@k without bias: the chance that one at least of k responses is right, judged by n >= k of them. P problems."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from egpo.errors import InputError

Floats = NDArray[np.float64]


def pass_at_k(num_samples_P: Iterable[int], num_correct_P: Iterable[int], k: int) -> Floats:
    """For each problem with n responses, c of them right, the share of its subsets of k that hold a right one:

        1 - C(n - c, k) / C(n, k)  =  1 - prod over i = n-c+1 ... n of (1 - k / i)

    The product never overflows, and is exact at its ends: 0 where c = 0, 1 where fewer than k are wrong. At k = 1 it is
    c / n. NaN for a problem with fewer than k responses. (Chen et al. 2021, arXiv:2107.03374)
    """
    n_P, c_P = np.asarray(num_samples_P, dtype=np.int64), np.asarray(num_correct_P, dtype=np.int64)
    if k < 1 or (c_P < 0).any() or (c_P > n_P).any():
        raise InputError(f"k={k}, right responses {c_P.tolist()!s:.60} of {n_P.tolist()!s:.60}", where="pass@k")
    factor = 1 - k / np.arange(1, n_P.max(initial=0) + 1)
    values = [1 - np.prod(factor[n - c : n]) if n - c >= k else 1.0 for n, c in zip(n_P, c_P, strict=True)]
    return np.where(n_P >= k, np.array(values, dtype=np.float64), np.nan)


def require_ks(ks: Iterable[int], n: int) -> tuple[int, ...]:
    """Those k, in order and once each; an InputError where n responses cannot tell."""
    wanted = tuple(sorted(set(ks)))
    impossible = [k for k in wanted if not 1 <= k <= n]
    if impossible:
        possible = "k can only be 1" if n == 1 else f"k can be 1 to {n}"
        fix = f"{possible}; for more, sample more: --n {max(impossible)}" if max(impossible) > n else possible
        raise InputError(f"pass@{impossible[0]} out of {n} response{'s' * (n > 1)} a problem", where="--k", fix=fix)
    return wanted


def default_ks(n: int) -> tuple[int, ...]:
    """The powers of two up to n."""
    return tuple(2**power for power in range(n.bit_length()))
