"""The section `algorithm` of a recipe: how advantages are computed from rewards.

The estimators and their settings come from the table `egpo.advantages.ESTIMATORS`.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model, model_validator

from egpo.advantages import ESTIMATORS, REFUSED, estimator_named
from egpo.errors import Fault
from egpo.filters import FILTERS, filter_named
from egpo.sections import Count, Fraction, Positive, Section, Segment, chosen_settings, named_in, one_of, raised

_SECTIONS = {name: row.settings for name, row in ESTIMATORS.items() if row.settings and row.settings.model_fields}


EstimatorName = Annotated[str, one_of(ESTIMATORS, REFUSED), named_in(ESTIMATORS)]
FilterName = Annotated[str, one_of(FILTERS), named_in(FILTERS)]


class Overlong(Section):
    """DAPO's soft penalty for long responses."""

    tokens: Count | None = None
    """Length of the range below rollout.max_response_tokens in which the penalty rises from 0, in tokens. Default: a
    fifth of rollout.max_response_tokens, as in the paper."""
    penalty: Positive = 1.0
    """Penalty of a response of rollout.max_response_tokens tokens."""

    def range_below(self, longest: int) -> int:
        """Return the length of the range for a maximum response length."""
        return max(1, longest // 5) if self.tokens is None else self.tokens


class AlgorithmFields(Section):
    """The settings of the section `algorithm` that every estimator has."""

    estimator: EstimatorName = "grpo"
    """Estimator that computes advantages from rewards: `grpo`, `egpo`, `egpo_calibrated`, another one with a page under
    `docs/algorithms`, or `module:name` for an estimator of your own."""
    normalize: bool = True
    """Divide the advantages of a group by the standard deviation of its rewards. No effect on `rloo`."""
    constant_groups: Literal["keep", "drop", "replace"] = "keep"
    """What to do with the groups that `filter` finds: by default those whose rewards are all equal, which have no
    gradient (but under `gtpo` and `grpo_s`, and with `egpo_calibrated.recover`). `keep`: count them in the mean of the
    loss. `drop`: leave them out. `replace`: sample further problems in their place (dynamic sampling)."""
    filter: FilterName = "constant"
    """Which groups `constant_groups` is about: `constant` (all rewards are equal), `all_or_none` (every response is
    correct, or none, as in DAPO), or `module:function` for a filter of your own."""
    max_refills: Count = 3
    """With `constant_groups: replace`: maximum number of further rounds of sampling per step. After them the step
    continues with the groups that it has."""
    overlong: Overlong | None = None
    """Subtract a penalty from the reward of responses that come near rollout.max_response_tokens. Verdicts and accuracy
    stay as they are. Default: no penalty."""
    random_rewards: Fraction | None = None
    """For a control run: replace the reward of each response by 1 with this probability, else by 0, drawn by problem
    and sample. Scores and accuracy are still those of the verdicts. Default: off."""
    estimator_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of an estimator of your own (`module:name`). Default: none."""

    @model_validator(mode="after")
    def _settings_stand_where_they_are_read(self) -> "AlgorithmFields":
        if self.estimator_settings and ":" not in self.estimator:
            what = f"`estimator_settings` are not used by the built-in estimator `{self.estimator}`"
            fix = f"write its settings under algorithm.{self.estimator}"
            raise raised(Fault(what, "estimator_settings", fix))
        return self

    @model_validator(mode="after")
    def _groups_to_recover_are_kept(self) -> "AlgorithmFields":
        recover = self.own_settings.get("recover", 0.0) if self.estimator in _SECTIONS else 0.0
        if recover and self.constant_groups != "keep":
            what = f"`recover` is {recover:g}, but `constant_groups: {self.constant_groups}` leaves out the groups that"
            fix = "set constant_groups to keep, or recover to 0"
            raise raised(Fault(f"{what} it is for", "constant_groups", fix))
        return self

    def check_estimator(self) -> None:
        """Import estimator and filter, if they are not built in, and check their settings. Raise InputError if they
        are wrong."""
        filter_named(self.filter)
        _ = self.settings

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of the chosen estimator."""
        return {"normalize": self.normalize} | {k: v for k, v in self.own_settings.items() if k != "entropy_mode"}

    @property
    def own_settings(self) -> dict[str, Any]:
        """Settings of the chosen estimator, including `entropy_mode`. Raises ConfigError if those of an estimator that
        is not built in are wrong."""
        given = self.estimator_settings
        return chosen_settings(self, self.estimator, estimator_named, "algorithm.estimator_settings", given)

    @property
    def segment(self) -> Segment | None:
        """The segment whose entropy the chosen estimator uses; None if it uses none (grpo)."""
        row = estimator_named(self.estimator)
        chosen: Segment | None = self.own_settings.get("entropy_mode", row.segment)
        return chosen if row.segment is not None else None


if TYPE_CHECKING:
    Algorithm = AlgorithmFields
else:
    Algorithm = create_model(
        "Algorithm",
        __base__=AlgorithmFields,
        __module__=__name__,
        **{
            name: (section, Field(default=section(), description=f"Settings of the estimator `{name}`."))
            for name, section in _SECTIONS.items()
        },
    )
