"""How rewards become advantages. Estimators and their settings come from the table `egpo.advantages.ESTIMATORS`."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import PydanticKnownError

from egpo.advantages import ESTIMATORS, estimator_named
from egpo.errors import Fault
from egpo.sections import Count, Section, Segment, checked, raised

_SECTIONS = {name: row.settings for name, row in ESTIMATORS.items() if row.settings and row.settings.model_fields}


def _known(name: str) -> str:
    if ":" not in name and name not in ESTIMATORS:
        raise PydanticKnownError("literal_error", {"expected": ", ".join(f"'{known}'" for known in ESTIMATORS)})
    return name


EstimatorName = Annotated[
    str,
    AfterValidator(_known),
    WithJsonSchema({"type": "string", "anyOf": [{"enum": list(ESTIMATORS)}, {"pattern": "^[^:]+:[^:]+$"}]}),
]


class AlgorithmFields(Section):
    """What holds for every estimator."""

    estimator: EstimatorName = "grpo"
    """How rewards become advantages: a name of the table, or `module:name` of an estimator outside the package."""
    normalize: bool = True
    """Divide by the group's standard deviation."""
    constant_groups: Literal["keep", "drop", "replace"] = "keep"
    """What happens to groups whose rewards are all equal, which have no gradient. `keep`: they count in the mean of the
    loss. `drop`: they do not. `replace`: further problems are sampled in their place (dynamic sampling)."""
    max_refills: Count = 3
    """Under `replace`: the largest number of further rounds of sampling; then the step continues with what it has."""
    estimator_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of an estimator outside the package (`module:name`)."""

    @model_validator(mode="after")
    def _settings_stand_where_they_are_read(self) -> "AlgorithmFields":
        if self.estimator_settings and ":" not in self.estimator:
            what = f"`estimator_settings` are given, and the estimator is `{self.estimator}`"
            fix = f"settings of `{self.estimator}` stand under algorithm.{self.estimator}"
            raise raised(Fault(what, "estimator_settings", fix))
        return self

    def check_estimator(self) -> None:
        """Import an estimator outside the package and check its settings; InputError if something is wrong."""
        _ = self.settings

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of the chosen estimator."""
        return {"normalize": self.normalize} | {k: v for k, v in self.own_settings.items() if k != "entropy_mode"}

    @property
    def own_settings(self) -> dict[str, Any]:
        """Settings of the chosen estimator, `entropy_mode` included. A fault in an outside one's: ConfigError."""
        if self.estimator in _SECTIONS:
            section: Section = getattr(self, self.estimator)
            return section.model_dump()
        row = estimator_named(self.estimator)
        if row.settings is None:
            return dict(self.estimator_settings)
        return checked(row.settings, "algorithm.estimator_settings", **self.estimator_settings).model_dump()

    @property
    def segment(self) -> Segment | None:
        """The segment that the chosen estimator measures; None if it measures none (grpo)."""
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
