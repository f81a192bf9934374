"""Rewards by name: ours by data source or kind, with a mode if wanted, and anybody's as `module:function`."""

from collections.abc import Callable

from egpo.errors import InputError, nearest
from egpo.rewards.foreign import foreign_scorer
from egpo.rewards.samples import Sample, full_extra, score_sample
from egpo.rewards.scoring import DATA_SOURCES, REWARDS, reward_name
from egpo.rewards.verdict import Verdict

Scorer = Callable[[Sample], Verdict]


def scorer_named(spec: str | None) -> Scorer:
    """What judges a sample. None: the reward of the sample's own data source.

    NAME is a data source or a kind of reward; NAME@MODE sets its mode; @MODE is the reward of the sample's own data
    source, in this mode where it has such a mode; `module:function` and `file.py:function` are rewards from outside.
    """
    if spec is None:
        return score_sample
    name, _, mode = spec.partition("@")
    if not name:
        return _by_source(mode)
    if name in DATA_SOURCES or name in REWARDS:
        return _ours(DATA_SOURCES.get(name, name), mode)
    if ":" in spec:
        return foreign_scorer(spec)
    known = {*DATA_SOURCES, *REWARDS}
    raise InputError(f"unknown reward `{name}`", fix=f"{nearest(name, known)} (or give `module:function`)")


def _by_source(mode: str) -> Scorer:
    def scorer(sample: Sample) -> Verdict:
        name = reward_name(sample.data_source)
        return _ours(name, mode if REWARDS[name].takes("mode", mode) else "")(sample)

    return scorer


def _ours(kind: str, mode: str) -> Scorer:
    judge, chosen = REWARDS[kind].judge, {"mode": mode} if mode else {}

    def scorer(sample: Sample) -> Verdict:
        return judge(sample.response, sample.ground_truth, {**full_extra(sample), **chosen})

    return scorer
