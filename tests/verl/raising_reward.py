"""A reward from outside that raises in the third step: after twice sixteen responses and a validation of eight."""

from itertools import count

from egpo.verl.reward import compute_score as judge

_calls = count(1)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if next(_calls) > 16 + 16 + 8:
        raise OSError("no space left for the checker")
    return judge(data_source, solution_str, ground_truth, extra_info)
