"""Metrics of a validation under verl over the responses that could be judged, as under the embedded engine.

verl itself would count a response on which the checker or the environment failed as wrong, with reward 0.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from egpo.advantages.signals import Metrics

Information = Mapping[str, Sequence[Any]]
"""What is known of each response: `reward`, and what our rewards return, one value per response."""
ExpectedCounts = Mapping[tuple[str, str], int]
"""How many responses a problem has, by data source and uid. verl counts missing ones as wrong."""
_JUDGED = ("reward", "score", "acc")
"""The values that a response does not have if it could not be judged."""


def judged_validation(
    compute: Callable[[Information, ExpectedCounts | None], Metrics],
    sources: Sequence[str],
    uids: Sequence[str],
    information: Information,
    expected: ExpectedCounts | None,
) -> Metrics:
    """Return the metrics that verl's own `compute` returns, without the responses that could not be judged.

    A problem with fewer judged responses would add metrics of other names (`mean@3` beside `mean@4`), which are
    dropped. `mean@N` is the mean over all judged responses; `error_frac` is the fraction of the others.
    """
    metrics = compute(information, expected)
    failed = [bool(value) for value in information.get("failed", ())]
    if not failed:
        return metrics
    by_source = {source: [place for place, of in enumerate(sources) if of == source] for source in set(sources)}
    shares = {
        f"val-aux/{source}/error_frac": fmean(failed[place] for place in places) for source, places in by_source.items()
    }
    if not any(failed):
        return metrics | shares
    judged = {
        name: [None if failed[place] else value for place, value in enumerate(values)] if name in _JUDGED else values
        for name, values in information.items()
    }
    left_out = Counter((str(sources[place]), str(uids[place])) for place, is_failed in enumerate(failed) if is_failed)
    fewer = {key: count - left_out[key] for key, count in (expected or {}).items()} or None
    known = {name: value for name, value in compute(judged, fewer).items() if name in metrics}
    for source, places in by_source.items():
        for value in _JUDGED:
            found = [judged[value][place] for place in places if value in judged]
            names = tuple(f"{section}/{source}/{value}/mean@" for section in ("val-core", "val-aux"))
            if present := [one for one in found if one is not None]:
                known |= {name: fmean(present) for name in metrics if name.startswith(names)}
    return known | shares
