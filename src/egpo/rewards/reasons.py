"""What every reason means, whichever part of the rewards gave it."""

from collections.abc import Iterable

from egpo.rewards.crew import CREW_REASONS
from egpo.rewards.foreign import FOREIGN_REASONS
from egpo.rewards.scoring import DATA_SOURCES, REWARDS

BATCH_REASONS = {**CREW_REASONS, **FOREIGN_REASONS}
"""Reasons that no reward gives itself: of batches, and of rewards from outside."""


def meaning_of(reason: str, judges: Iterable[str]) -> str:
    """Its meaning to those of the judges (data sources or kinds, with or without @mode) that know it.

    "" for a reason that only the author of a reward from outside knows.
    """
    names = [judge.partition("@")[0] for judge in judges]
    kinds = [REWARDS[DATA_SOURCES.get(name, name)] for name in names if name in DATA_SOURCES or name in REWARDS]
    found = dict.fromkeys(kind.reasons[reason] for kind in kinds if reason in kind.reasons)
    return " / ".join(found) or BATCH_REASONS.get(reason, "")
