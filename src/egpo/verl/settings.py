"""What `algorithm.adv_estimator` and `+algorithm.egpo.*` say in verl's configuration. No verl, no torch.

Hydra takes any key after a `+`, so an unknown one is refused here, with the nearest right one.

At which steps responses are dumped. No verl, no torch: the launcher says, the trainer asks.

Which verl this package is written for, and which one is here. No verl, no torch.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, cast

from packaging.specifiers import SpecifierSet
from pydantic import ConfigDict, ValidationError, create_model

from egpo.advantages import ESTIMATORS as TABLE
from egpo.advantages import estimator_named
from egpo.config.old_spellings import OLD_KEYS, current_value
from egpo.config.sections.training import Segments
from egpo.errors import ConfigError, EgpoError, Fault, nearest, notify_once
from egpo.sections import PlaceOf, faults_of
from egpo.support import VERL_VERSION

WHERE = "algorithm.egpo"
_OLD = {row.old: row.verl.removeprefix("egpo.") for row in OLD_KEYS if row.old != row.verl}
OLDER_KEYS = {old.removeprefix("egpo."): new for old, new in _OLD.items() if old.startswith("egpo.")}
"""Older spellings of keys under `algorithm.egpo`."""
OLDER_SIBLINGS = {old: new for old, new in _OLD.items() if "." not in old}
"""Older keys beside `algorithm.egpo`."""


class _CommonKeys(Segments):
    """Keys under `algorithm.egpo` that do not depend on the estimator: `tags`, and:"""

    record: str | None = None
    """A folder: each step's batch is written there, with the advantages that verl used."""


class _AnyKeys(_CommonKeys):
    """For an estimator outside the package without a settings class: its own keys are not checked."""

    model_config = ConfigDict(extra="allow")


VERLS_OWN = ("grpo",)
"""Estimators that verl has itself, under the same name."""
ESTIMATORS = tuple(name for name in TABLE if name not in VERLS_OWN)
"""The names that the plug-in adds to verl's."""


def is_ours(estimator: str) -> bool:
    """Tell whether the plug-in computes this estimator: one of the table, or `module:name`."""
    return estimator in ESTIMATORS or ":" in estimator


def _keys_of(estimator: str) -> type[_CommonKeys]:
    """Return the section of keys under `algorithm.egpo` for an estimator; verl's own have the common keys alone."""
    if not is_ours(estimator):
        return _CommonKeys
    settings = estimator_named(estimator).settings
    if settings is None:
        return _AnyKeys
    bases: Any = (settings, _CommonKeys)
    return cast(type[_CommonKeys], create_model("Keys", __base__=bases))


@dataclass(frozen=True)
class Settings:
    """`arguments` are the estimator's own keywords; `segment` is what it measures, none under an estimator of verl's.

    `asked`: the run names something of ours. Otherwise everything is as verl has it.
    """

    estimator: str
    asked: bool
    segment: str | None
    arguments: dict[str, Any]
    tags: tuple[str, str]
    record: str | None

    @property
    def ours(self) -> bool:
        return is_ours(self.estimator)


def read_settings(algorithm: Mapping[str, Any]) -> Settings:
    """Of verl's section `algorithm`, as plain values. Every fault at once: ConfigError."""
    estimator = str(algorithm.get("adv_estimator"))
    given = algorithm.get("egpo") or {}
    if not isinstance(given, Mapping):
        raise ConfigError([Fault(f"`egpo` is `{given}`", "algorithm", "it is a section: +algorithm.egpo.lam=0.4")])
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
    own = made.model_dump(exclude={"tags", "record", "entropy_mode"})
    normalize = bool(algorithm.get("norm_adv_by_std_in_grpo", True))
    return Settings(
        estimator=estimator,
        asked=is_ours(estimator) or any(key.startswith("egpo") for key in algorithm),
        segment=_segment(estimator, made),
        arguments={"normalize": normalize, **own},
        tags=made.tags,
        record=made.record,
    )


def _segment(estimator: str, made: _CommonKeys) -> str | None:
    """Return the segment that the estimator measures; None under one of verl's own."""
    default = estimator_named(estimator).segment if is_ours(estimator) else None
    return default and getattr(made, "entropy_mode", default)


def _modern(algorithm: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """The keys under their present names, and where two spellings of one say different things."""
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
            what = f"`{first[key]}` is {keys[key]} and `{place}` is {value}, and they are one setting"
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
        f"`{key}` is a setting of `{owner}`, and the estimator is `{estimator}`",
        WHERE,
        f"algorithm.adv_estimator={owner}, or leave it out",
    )


def _misplaced(algorithm: Mapping[str, Any], estimator: str) -> Iterator[Fault]:
    """Keys beside `algorithm.egpo` that verl would accept, and nobody would read."""
    if estimator.startswith("egpo") and not is_ours(estimator):
        yield Fault(f"unknown estimator `{estimator}`", "algorithm.adv_estimator", nearest(estimator, ESTIMATORS))
    for key in algorithm:
        if key == "egpo_calibrated":
            yield Fault("there is no section `egpo_calibrated`", "algorithm", f"its settings too stand under {WHERE}")
        elif key.startswith("egpo") and key not in ("egpo", *OLDER_SIBLINGS):
            yield Fault(f"unknown key `{key}`", "algorithm", nearest(key, ["egpo", *OLDER_SIBLINGS]))
    if is_ours(estimator) and algorithm.get("lam", 1.0) != 1.0:
        what = f"`algorithm.lam` is {algorithm['lam']}: that is GAE's lambda, which `{estimator}` does not have"
        yield Fault(what, "algorithm", f"+{WHERE}.lam={algorithm['lam']}")


VARIABLE = "EGPO_ROLLOUTS_EVERY"
"""Steps between dumps; the first and the last step's are always written. Unset: every step, as in verl."""


def is_due(step: int, last: int) -> bool:
    every = int(os.environ.get(VARIABLE, "1"))
    return step in (1, last) or bool(every and step % every == 0)


SUPPORTED = f"=={VERL_VERSION}"
INSTALL = f"pip install 'verl{SUPPORTED}' TransferQueue"


def installed_version() -> str | None:
    """None where verl is not installed."""
    try:
        return metadata.version("verl")
    except metadata.PackageNotFoundError:
        return None


def require_supported(version: str | None) -> None:
    """The plug-in reads verl's own batch and replaces its trainers: another version may have neither where we look."""
    if version is None:
        raise EgpoError("verl is not installed", fix=f"{INSTALL} (verl{SUPPORTED} is supported)")
    if not SpecifierSet(SUPPORTED).contains(version, prereleases=True):
        raise EgpoError(f"verl {version} is installed, and verl{SUPPORTED} is supported", fix=INSTALL)
