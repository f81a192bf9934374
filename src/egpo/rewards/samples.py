"""One response with what it is judged by, out of a row of any host."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from egpo.errors import InputError
from egpo.rewards.boundary import fields_of, first_present, plain, text_of
from egpo.rewards.scoring import score
from egpo.rewards.verdict import Verdict

RESPONSE_KEYS = ("response", "text", "output")
"""Where a row has its response: `response` is ours, `text` its synonym, `output` verl's."""
SOURCE_KEYS = ("data_source", "judged_by")
"""`judged_by` is what verl's rollout files keep of the data source (`egpo.verl.reward`)."""


@dataclass(frozen=True)
class Sample:
    """`ability` is the row's own column, and goes before the one in `extra_info`."""

    data_source: str
    response: str
    ground_truth: Any
    ability: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)


def score_sample(sample: Sample) -> Verdict:
    return score(sample.data_source, sample.response, sample.ground_truth, full_extra(sample))


def full_extra(sample: Sample) -> Mapping[str, Any]:
    """`extra_info` with the row's own `ability` in it."""
    return {**sample.extra_info, "ability": sample.ability} if sample.ability else sample.extra_info


def read_sample(row: Mapping[str, Any] | Sample, where: str) -> Sample:
    """A row in verl's parquet shape with its response, a line of a rollout file, or a sample as it is.

    The ground truth is `ground_truth`, `reward_model.ground_truth`, or `gts` in verl's rollout files.
    """
    if isinstance(row, Sample):
        return row
    if not isinstance(row, Mapping):
        raise InputError(f"{row!r:.80} is no row", where=where, fix="give a dict with its response, or a Sample")
    response = first_present(row, RESPONSE_KEYS)
    if response is None:
        fix = f"rows have it as {' or '.join(f'`{key}`' for key in RESPONSE_KEYS)}"
        raise InputError("no response", where=where, fix=fix)
    ability = first_present(row, ("ability",))
    return Sample(
        text_of(first_present(row, SOURCE_KEYS) or "", f"{where}, data_source"),
        text_of(response, f"{where}, response"),
        _ground_truth(row, where),
        "" if ability is None else text_of(ability, f"{where}, ability"),
        plain(fields_of(row.get("extra_info"), f"{where}, extra_info")),
    )


def _ground_truth(row: Mapping[str, Any], where: str) -> Any:
    truth = first_present(row, ("ground_truth",))
    if truth is None:
        truth = first_present(fields_of(row.get("reward_model"), f"{where}, reward_model"), ("ground_truth",))
    if truth is None:
        truth = first_present(row, ("gts",))
    if truth is None:
        fix = "rows have it as `ground_truth`, `reward_model.ground_truth` or `gts`"
        raise InputError("no ground truth", where=where, fix=fix)
    return truth
