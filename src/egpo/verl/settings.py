"""The plug-in's settings in verl's configuration: `algorithm.adv_estimator` and `algorithm.egpo.*`.

Hydra accepts any key after a `+`, so unknown keys are refused here, with the nearest known key. The module also decides
at which steps responses are dumped, and checks the installed version of verl. It imports neither verl nor torch.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, cast

from packaging.specifiers import SpecifierSet
from pydantic import ConfigDict, Field, ValidationError, create_model

from egpo.advantages import ESTIMATORS as TABLE
from egpo.advantages import estimator_named
from egpo.config.old_spellings import OLD_KEYS, current_value
from egpo.config.sections.training import EpisodeSettings, Segments
from egpo.errors import ConfigError, EgpoError, Fault, nearest, notify_once
from egpo.sections import Count, Fraction, PlaceOf, Positive, Section, faults_of
from egpo.support import VERL_RUNS, VERL_VERSION

WHERE = "algorithm.egpo"
_OLD = {row.old: row.verl.removeprefix("egpo.") for row in OLD_KEYS if row.old != row.verl}
OLDER_KEYS = {old.removeprefix("egpo."): new for old, new in _OLD.items() if old.startswith("egpo.")}
"""Older names of keys under `algorithm.egpo`, and their present names."""
OLDER_SIBLINGS = {old: new for old, new in _OLD.items() if "." not in old}
"""Older keys directly under `algorithm`, and their present names under `algorithm.egpo`."""


class OverlongKeys(Section):
    """DAPO's soft penalty for long episodes. Single responses have verl's own (`reward.reward_manager.name=dapo`)."""

    tokens: Count
    """Length of the range below `data.max_response_length` in which the penalty rises from 0, in tokens."""
    penalty: Positive = 1.0
    """Penalty of an episode of `data.max_response_length` tokens."""

    def of(self, length: int, longest: int) -> float:
        """Return the penalty of an episode of this length, in tokens."""
        return self.penalty * min(1.0, max(0.0, (length - (longest - self.tokens)) / self.tokens))


class ControllerKeys(Section):
    """A controller: a function that sets the weight of the entropy term in each step."""

    name: str
    """`adaptive_entropy`, or `module:name`."""
    settings: dict[str, Any] = Field({})
    """The controller's settings."""


class _CommonKeys(Segments):
    """Keys under `algorithm.egpo` that do not depend on the estimator."""

    record: str | None = None
    """Folder to which each step's batch is written, with the advantages that verl used. None: nothing is written."""
    episodes: EpisodeSettings = EpisodeSettings()
    """Limits of the episodes of rows with `agent_name: egpo`."""
    overlong: OverlongKeys | None = None
    """Penalty for long episodes. None: no penalty."""
    random_rewards: Fraction | None = None
    """For a control run: the estimator gets a reward of 1 with this probability, else of 0. None: off."""
    controller: ControllerKeys | None = None
    """Controller of the weight of the entropy term. None: the weight is `actor.entropy_coeff`."""


COMMON_KEYS = tuple(_CommonKeys.model_fields)


class _AnyKeys(_CommonKeys):
    """Keys for an estimator outside the package that has no settings class: its own keys are not checked."""

    model_config = ConfigDict(extra="allow")


VERLS_OWN = tuple(name for name in ("grpo", "rloo") if name in TABLE)
"""Estimators of this package that verl has itself, under the same name and with the same values: verl's are used. A
name of verl's with other values (`grpo_passk`) must not be a name of ours."""
ESTIMATORS = tuple(name for name in TABLE if name not in VERLS_OWN)
"""Names of the estimators that the plug-in adds to verl."""


def is_ours(estimator: str) -> bool:
    """Return whether the plug-in computes this estimator: one of `ESTIMATORS`, or an import path `module:name`."""
    return estimator in ESTIMATORS or ":" in estimator


def _keys_of(estimator: str) -> type[_CommonKeys]:
    """Return the class of the keys under `algorithm.egpo` for an estimator; verl's own have only the common keys."""
    if not is_ours(estimator):
        return _CommonKeys
    settings = estimator_named(estimator).settings
    if settings is None:
        return _AnyKeys
    bases: Any = (settings, _CommonKeys)
    return cast(type[_CommonKeys], create_model("Keys", __base__=bases))


@dataclass(frozen=True)
class Settings:
    """The plug-in's settings, as read from verl's section `algorithm`.

    `arguments` are the estimator's keyword arguments; `segment` is the segment whose entropy it uses, None for verl's
    own estimators. `asked`: the section uses an estimator or a key of the plug-in; otherwise verl runs unchanged.
    """

    estimator: str
    asked: bool
    segment: str | None
    arguments: dict[str, Any]
    tags: tuple[str, str]
    record: str | None
    episodes: EpisodeSettings
    overlong: OverlongKeys | None = None
    random_rewards: float | None = None
    controller: ControllerKeys | None = None

    @property
    def ours(self) -> bool:
        return is_ours(self.estimator)

    @property
    def per_token(self) -> bool:
        """Whether the estimator gives one advantage per token, and needs the entropy of each."""
        return self.ours and estimator_named(self.estimator).level == "token"


def read_settings(algorithm: Mapping[str, Any]) -> Settings:
    """Return the settings in verl's section `algorithm` (plain values). ConfigError lists every fault."""
    estimator = str(algorithm.get("adv_estimator"))
    given = algorithm.get("egpo") or {}
    if not isinstance(given, Mapping):
        what = f"`egpo` is `{given}`, not a section"
        raise ConfigError([Fault(what, "algorithm", "set its keys: +algorithm.egpo.lam=0.4")])
    faults = [*_misplaced(algorithm, estimator)]
    keys, contradictions = _modern(algorithm, given)
    faults += contradictions
    strangers = {key: fault for key in keys if (fault := _of_another_estimator(key, estimator))}
    faults += strangers.values()
    section = _keys_of(estimator)
    try:
        made = section.model_validate({key: value for key, value in keys.items() if key not in strangers})
    except ValidationError as error:
        faults += faults_of(error, section, PlaceOf(WHERE, {}, {}))
    if faults:
        raise ConfigError(faults)
    return _settings(estimator, made, algorithm)


def _settings(estimator: str, made: _CommonKeys, algorithm: Mapping[str, Any]) -> Settings:
    own = made.model_dump(exclude={*COMMON_KEYS, "entropy_mode"})
    normalize = bool(algorithm.get("norm_adv_by_std_in_grpo", True))
    return Settings(
        estimator=estimator,
        asked=is_ours(estimator) or any(key.startswith("egpo") for key in algorithm),
        segment=_segment(estimator, made),
        arguments={"normalize": normalize, **own},
        tags=made.tags,
        record=made.record,
        episodes=made.episodes,
        overlong=made.overlong,
        random_rewards=made.random_rewards,
        controller=made.controller,
    )


def _segment(estimator: str, made: _CommonKeys) -> str | None:
    """Return the segment whose entropy the estimator uses; None for verl's own estimators."""
    default = estimator_named(estimator).segment if is_ours(estimator) else None
    return default and getattr(made, "entropy_mode", default)


def _modern(algorithm: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """Return the keys under their present names, and a fault for each setting given twice with different values."""
    keys: dict[str, Any] = {}
    faults: list[Fault] = []
    spelled = [(f"{WHERE}.{key}", OLDER_KEYS.get(key, key), value) for key, value in given.items()]
    spelled += [(f"algorithm.{old}", new, algorithm[old]) for old, new in OLDER_SIBLINGS.items() if old in algorithm]
    first: dict[str, str] = {}
    for place, key, given_value in spelled:
        value = current_value(f"{WHERE}.{key}", given_value)
        if not place.endswith(f".{key}"):
            notify_once(f"the old key {place} is read as {WHERE}.{key}")
        if key in keys and keys[key] != value:
            what = f"`{first[key]}` is {keys[key]} and `{place}` is {value}, but both name the same setting"
            faults.append(Fault(what, "algorithm", f"keep {WHERE}.{key}"))
        keys.setdefault(key, value)
        first.setdefault(key, place)
    return keys, faults


def _of_another_estimator(key: str, estimator: str) -> Fault | None:
    """Return a fault if the key is a setting of a different estimator, else None.

    Without this check the error would suggest the most similar key of the chosen estimator, which has another meaning
    (for example for `lam` under egpo_calibrated).
    """
    section = _keys_of(estimator)
    if section is _AnyKeys or key in section.model_fields:
        return None
    owner = next((name for name in ESTIMATORS if key in _keys_of(name).model_fields), None)
    if owner is None:
        return None
    return Fault(
        f"`{key}` is a setting of `{owner}`, but the estimator is `{estimator}`",
        WHERE,
        f"set algorithm.adv_estimator={owner}, or leave the key out",
    )


def _misplaced(algorithm: Mapping[str, Any], estimator: str) -> Iterator[Fault]:
    """Yield a fault for each key or estimator under `algorithm` that looks like ours but would not be used."""
    if estimator.startswith("egpo") and not is_ours(estimator):
        yield Fault(f"unknown estimator `{estimator}`", "algorithm.adv_estimator", nearest(estimator, ESTIMATORS))
    for key in algorithm:
        if key == "egpo_calibrated":
            yield Fault("there is no section `egpo_calibrated`", "algorithm", f"put its settings under {WHERE}")
        elif key.startswith("egpo") and key not in ("egpo", *OLDER_SIBLINGS):
            yield Fault(f"unknown key `{key}`", "algorithm", nearest(key, ["egpo", *OLDER_SIBLINGS]))
    if is_ours(estimator) and algorithm.get("lam", 1.0) != 1.0:
        what = f"`algorithm.lam` is {algorithm['lam']}: that is GAE's lambda, which `{estimator}` does not have"
        yield Fault(what, "algorithm", f"set +{WHERE}.lam={algorithm['lam']}")


VARIABLE = "EGPO_ROLLOUTS_EVERY"
"""Environment variable: steps between dumps. The first and the last step are always dumped. Unset: every step."""


def is_due(step: int, last: int) -> bool:
    every = int(os.environ.get(VARIABLE, "1"))
    return step in (1, last) or bool(every and step % every == 0)


SUPPORTED = f"=={VERL_VERSION}"
RUN_WITH = f"the plug-in was run with verl {VERL_VERSION} ({VERL_RUNS})"
INSTALL = f"pip install 'verl{SUPPORTED}' TransferQueue"


def installed_version() -> str | None:
    """Return the version of the installed verl; None if verl is not installed."""
    try:
        return metadata.version("verl")
    except metadata.PackageNotFoundError:
        return None


def require_supported(version: str | None) -> str:
    """Return a notice about the version of verl; empty for the version with which the plug-in was run.

    Another version is accepted if it has every name of verl that the plug-in uses (`verl_names.py`). Otherwise
    EgpoError, with all names that are missing.
    """
    if version is None:
        raise EgpoError("verl is not installed", fix=f"{INSTALL} (verl{SUPPORTED} is supported)")
    if SpecifierSet(SUPPORTED).contains(version, prereleases=True):
        return ""
    from egpo.verl.verl_names import missing_names

    if missing := missing_names():
        what = f"verl {version} lacks {len(missing)} of the names that the plug-in uses: {'; '.join(missing)}"
        raise EgpoError(f"{what} ({RUN_WITH})", fix=INSTALL)
    return f"verl {version} has every name that the plug-in uses, but was not run: {RUN_WITH}"
