"""Our rewards in the form in which verl calls them. In verl's configuration:

reward.custom_reward_function.path=pkg://egpo.verl.reward
reward.custom_reward_function.name=compute_score
+reward.custom_reward_function.reward_kwargs.mode=plain          (optional; so are `tags` and `reasons`)
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from egpo.errors import warn_once
from egpo.rewards.plain_values import fields_of, text_of, with_defaults
from egpo.rewards.sandbox import working_sandbox
from egpo.rewards.scoring import REWARDS, check_settings, kind_of, reasons_of, score

SETTINGS = ("mode", "tags")


def compute_score(
    data_source: Any,
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    reasons: str | Iterable[str] = "all",
    **kwargs: Any,
) -> dict[str, float | str]:
    """Return `score`, `acc`, `failed`, 0 or 1 as `reason/<name>` for each reason, and as text `reason`, `judged_by`.

    `mode` and `tags` in `kwargs` are used for rows whose `extra_info` does not set them, if the row's reward accepts
    them; other arguments of verl are ignored.

    verl uses the keys of the first response for the whole batch, so every response has the same keys for any data
    source. If validation samples a prompt more than once, verl bootstraps every number, which takes milliseconds per
    prompt and key. `reasons` lists the data sources in use, so that there are `reason/<name>` keys only for their
    reasons ([]: no such keys). Text is written to verl's rollout files and left out of its metrics.

    verl cannot leave a response out: if the checker failed, the score is 0, `failed` is 1, and a warning is given. Our
    trainers leave such a response out of advantages and of the metrics of a validation.
    Without a sandbox this would happen to every program, so that a missing sandbox is an EgpoError with the fix.
    """
    defaults = _defaults(data_source, kwargs)
    extra = with_defaults(fields_of(extra_info, "extra_info"), defaults)
    verdict = score(data_source, solution_str, ground_truth, extra)
    if verdict.reason == "no_sandbox":
        # Raises the error of the sandbox, of which the verdict has only the name.
        working_sandbox()
    if verdict.failed:
        warn_once(
            f"failed {verdict.reason}", f"a response could not be judged (`{verdict.reason}`): it scores 0 in verl"
        )
    names = reason_names(reasons if isinstance(reasons, str) else tuple(reasons))
    return {
        "score": float(verdict.reward),
        "acc": float(verdict.correct),
        "failed": float(verdict.failed),
        **{f"reason/{name}": float(name == verdict.reason) for name in names},
        "reason": verdict.reason,
        "judged_by": text_of(data_source, "data_source"),
    }


def _defaults(data_source: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the run that the row's reward accepts. (One run may use several rewards.)"""
    made = {name: kwargs[name] for name in SETTINGS if name in kwargs}
    check_settings(made, REWARDS.values(), "reward_kwargs")
    kind = kind_of(data_source)
    return {name: value for name, value in made.items() if kind.takes(name, value)}


@lru_cache(maxsize=64)
def reason_names(data_sources: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the verdict reasons that the rewards of these data sources give; "all": of every reward."""
    if data_sources == "all":
        found: Iterable[Mapping[str, str]] = (kind.reasons for kind in REWARDS.values())
    else:
        found = map(reasons_of, (data_sources,) if isinstance(data_sources, str) else data_sources)
    return tuple(dict.fromkeys(name for reasons in found for name in reasons))
