"""Samples from rows of egpo, verl or TRL, and rewards by name.

`read_sample` makes a `Sample` (a response with its data source, ground truth and extra_info) of a row. `scorer_named`
returns the function that judges samples: a built-in reward by data source or name, perhaps with a mode, or a user's
function with verl's arguments as `module:function` or `file.py:function`.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from egpo.errors import EgpoError, InputError, nearest, warn_once
from egpo.rewards.plain_values import fields_of, finite, first_present, plain, single, text_of
from egpo.rewards.scoring import DATA_SOURCES, REWARDS, reward_name, score
from egpo.rewards.verdict import Verdict
from egpo.user_code import import_user_code

RESPONSE_KEYS = ("response", "text", "output")
"""Keys under which a row may have its response: egpo's, a synonym, and verl's."""
SOURCE_KEYS = ("data_source", "judged_by")
"""Keys under which a row may have its data source. In verl's rollout files it is `judged_by` (`egpo.verl.reward`)."""


@dataclass(frozen=True)
class Sample:
    """A response with the data by which it is judged. `ability` is the row's column of that name, and overrides the one
    in `extra_info`."""

    data_source: str
    response: str
    ground_truth: Any
    ability: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)


def score_sample(sample: Sample) -> Verdict:
    return score(sample.data_source, sample.response, sample.ground_truth, full_extra(sample))


def full_extra(sample: Sample) -> Mapping[str, Any]:
    """Return `extra_info` with the row's own `ability` in it."""
    return {**sample.extra_info, "ability": sample.ability} if sample.ability else sample.extra_info


def read_sample(row: Mapping[str, Any] | Sample, where: str) -> Sample:
    """Read a row in verl's parquet format with its response, a line of a rollout file, or a `Sample`.

    The ground truth is `ground_truth`, `reward_model.ground_truth`, or `gts` in verl's rollout files.
    """
    if isinstance(row, Sample):
        return row
    if not isinstance(row, Mapping):
        raise InputError(f"{row!r:.80} is not a row", where=where, fix="give a dict with a response, or a Sample")
    response = first_present(row, RESPONSE_KEYS)
    if response is None:
        fix = f"give the response as {' or '.join(f'`{key}`' for key in RESPONSE_KEYS)}"
        raise InputError("the row has no response", where=where, fix=fix)
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
        fix = "give the ground truth as `ground_truth`, `reward_model.ground_truth` or `gts`"
        raise InputError("the row has no ground truth", where=where, fix=fix)
    return truth


KEYWORDS = ("data_source", "solution_str", "ground_truth", "extra_info")
"""The arguments with which verl calls a reward."""

FOREIGN_REASONS = {
    "scored": "a user's reward returned a number without a reason",
    "no_score": "checker failure: a user's reward returned None, or a number that is not finite",
    "reward_raised": "checker failure: a user's reward raised an exception",
}


def foreign_scorer(spec: str) -> Callable[[Sample], Verdict]:
    """Return a scorer that calls a user's function, by keyword, with those of verl's arguments that it accepts."""
    function = user_function(spec)
    accepted = _accepted_keywords(function, spec)

    def scorer(sample: Sample) -> Verdict:
        values = (sample.data_source, sample.response, sample.ground_truth, dict(full_extra(sample)))
        given = {name: value for name, value in zip(KEYWORDS, values, strict=True) if name in accepted}
        try:
            with redirect_stdout(sys.stderr):
                result = function(**given)
        except EgpoError:
            raise
        except (Exception, SystemExit) as error:  # the boundary to a user's function, which may raise anything
            what = f"reward {spec} raised {type(error).__name__}: {error}"
            warn_once(f"{spec} raised", f"{what}; responses on which it raises count as failed, not as wrong")
            return Verdict(0.0, False, "reward_raised", failed=True)
        return verdict_of(result, spec)

    return scorer


def _accepted_keywords(function: Callable[..., Any], spec: str) -> set[str]:
    """Return those of verl's arguments that the function accepts; InputError if it does not take the response, or
    requires another argument."""
    try:
        signature = inspect.signature(function)
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
        accepted = {name for name in KEYWORDS if takes_any or name in signature.parameters}
        signature.bind(**dict.fromkeys({*accepted, "solution_str"}))
    except (TypeError, ValueError) as error:
        fix = f"let it take {', '.join(KEYWORDS)}, or some of them, by keyword"
        what = f"the function cannot be called with verl's arguments ({error})"
        raise InputError(what, where=f"reward {spec}", fix=fix) from error
    return accepted


def verdict_of(result: Any, spec: str, full_reward: float = 1.0) -> Verdict:
    """Return the verdict for the result of a user's reward: a number, or a dict with `score` and perhaps `acc`.

    Without `acc` a reward of at least `full_reward` counts as correct: a number alone does not tell what the full
    reward is.
    """
    if isinstance(result, Verdict):
        return result
    fields = result if isinstance(result, Mapping) else {"score": result}
    reward, right = single(fields.get("score")), single(fields.get("acc"))
    if not isinstance(reward, int | float | None):
        fix = "return a number, or a dict with `score`"
        raise InputError(
            f"the function returned {result!r:.80}, which is not a reward", where=f"reward {spec}", fix=fix
        )
    number = None if reward is None else finite(reward)
    if number is None:
        return Verdict(0.0, False, "no_score", failed=True)
    correct = number >= full_reward if right is None else right == 1
    reason, failed = str(fields.get("reason") or "scored"), single(fields.get("failed")) in (True, 1)
    return Verdict(number, correct, reason, failed=failed)


def user_function(spec: str) -> Callable[..., Any]:
    """Import the function that `module:function` or `file.py:function` names. InputError if there is none."""
    module_name, _, name = spec.rpartition(":")
    module = import_user_code(module_name, f"reward {spec}")
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value)]
        fix = nearest(name, functions) if functions else f"define `{name}` there"
        raise InputError(f"`{module_name}` has no function `{name}`", where=f"reward {spec}", fix=fix)
    found: Callable[..., Any] = function
    return found


Scorer = Callable[[Sample], Verdict]


def scorer_named(spec: str | None) -> Scorer:
    """Return the function that judges a sample. None: the reward of the sample's own data source.

    NAME is a data source or a kind of reward; NAME@MODE sets its mode; @MODE is the reward of the sample's own data
    source, in this mode if it has such a mode; `module:function` and `file.py:function` name a user's function.
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
