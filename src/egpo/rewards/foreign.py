"""Rewards from outside: functions as verl takes them, named `module:function` or `file.py:function`."""

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any

from egpo.errors import EgpoError, InputError, nearest, warn_once
from egpo.outside import import_outside
from egpo.rewards.boundary import finite, single
from egpo.rewards.samples import Sample, full_extra
from egpo.rewards.verdict import Verdict

KEYWORDS = ("data_source", "solution_str", "ground_truth", "extra_info")
"""What verl hands to a reward."""

FOREIGN_REASONS = {
    "scored": "a reward from outside gave a number and no reason",
    "no_score": "checker failure: a reward from outside gave None, or a number that is not finite",
    "reward_raised": "checker failure: a reward from outside raised an exception",
}


def foreign_scorer(spec: str) -> Callable[[Sample], Verdict]:
    """A judge of samples out of a function that takes verl's arguments, or some of them, by keyword."""
    function = _function(spec)
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
            warn_once(f"{spec} raised", f"reward {spec} raised {type(error).__name__}: {error}")
            return Verdict(0.0, False, "reward_raised", failed=True)
        return verdict_of(result, spec)

    return scorer


def _accepted_keywords(function: Callable[..., Any], spec: str) -> set[str]:
    """Those of verl's arguments that it takes: the response at least, and nothing beside them that has no default."""
    try:
        signature = inspect.signature(function)
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
        accepted = {name for name in KEYWORDS if takes_any or name in signature.parameters}
        signature.bind(**dict.fromkeys({*accepted, "solution_str"}))
    except (TypeError, ValueError) as error:
        fix = f"its arguments are {', '.join(KEYWORDS)}, or some of them, by keyword"
        raise InputError(
            f"cannot be called with verl's arguments ({error})", where=f"reward {spec}", fix=fix
        ) from error
    return accepted


def verdict_of(result: Any, spec: str) -> Verdict:
    """A verdict out of what verl takes from a reward: a number, or a dict with `score` and perhaps `acc`.

    Without `acc` a reward of 1 or more is right: a number alone does not say where full reward lies.
    """
    if isinstance(result, Verdict):
        return result
    fields = result if isinstance(result, Mapping) else {"score": result}
    reward, right = single(fields.get("score")), single(fields.get("acc"))
    if not isinstance(reward, int | float | None):
        raise InputError(f"gave {result!r:.80}", where=f"reward {spec}", fix="give a number, or a dict with `score`")
    number = None if reward is None else finite(reward)
    if number is None:
        return Verdict(0.0, False, "no_score", failed=True)
    correct = number >= 1 if right is None else right == 1
    reason, failed = str(fields.get("reason") or "scored"), single(fields.get("failed")) in (True, 1)
    return Verdict(number, correct, reason, failed=failed)


def _function(spec: str) -> Callable[..., Any]:
    module_name, _, name = spec.rpartition(":")
    module = import_outside(module_name, f"reward {spec}")
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value)]
        fix = nearest(name, functions) if functions else "define it"
        raise InputError(f"`{module_name}` has no function `{name}`", where=f"reward {spec}", fix=fix)
    found: Callable[..., Any] = function
    return found
