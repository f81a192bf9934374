"""Mixed mathematics and code: the row's `ability` decides which reward it gets."""

from typing import Any

from egpo.errors import InputError, nearest
from egpo.rewards.boundary import is_missing, plain, text_of
from egpo.rewards.kinds import KINDS, Fields, Kind
from egpo.rewards.verdict import Verdict

ABILITIES = ("math", "code")


def hybrid(text: str, ground_truth: Any, extra_info: Fields) -> Verdict:
    """The verdict of the reward that `ability` names. `score` puts a row's own column over that of `extra_info`."""
    kind = KINDS[ability_of(extra_info)]
    return kind.judge(text, ground_truth, _meant_for(kind, extra_info))


def _meant_for(kind: Kind, extra_info: Fields) -> Fields:
    """Without a `mode` that only the other ability knows: one stands for all rows of a mixed set."""
    mode = extra_info.get("mode")
    if is_missing(plain(mode)) or kind.takes("mode", mode) or not HYBRID.takes("mode", mode):
        return extra_info
    return {name: value for name, value in extra_info.items() if name != "mode"}


def ability_of(extra_info: Fields) -> str:
    """ "math" or "code", however it is wrapped and in whatever case (public sets write MATH)."""
    stated = extra_info.get("ability")
    if is_missing(plain(stated)) or plain(stated) == "":
        fix = "give each row an `ability` of `math` or `code`, as a column or in `extra_info`"
        raise InputError("the row does not say its `ability`", where="hybrid reward", fix=fix)
    ability = text_of(stated, "ability").strip().lower()
    if ability not in ABILITIES:
        raise InputError(f"unknown ability `{ability}`", where="hybrid reward", fix=nearest(ability, ABILITIES))
    return ability


def _reasons() -> dict[str, str]:
    """Those of both; one that both have means what it means in each."""
    first, second = (KINDS[ability].reasons for ability in ABILITIES)
    shared = {name: f"math: {first[name]}; code: {second[name]}" for name in first if name in second}
    return {**first, **second, **shared}


HYBRID = Kind(hybrid, _reasons(), tuple(dict.fromkeys(mode for name in ABILITIES for mode in KINDS[name].modes)))
