"""Which stages of an experiment are gone through."""

from collections.abc import Sequence
from dataclasses import dataclass

from egpo.errors import InputError, nearest

STAGES = ("prepare", "probe", "train", "merge", "eval", "report")


@dataclass(frozen=True)
class Selection:
    """The stages to be gone through, in their order; those in `again` are done whatever the record says."""

    stages: tuple[str, ...] = STAGES
    again: tuple[str, ...] = ()

    @classmethod
    def of(cls, only: Sequence[str] = (), start: str | None = None) -> "Selection":
        """`only` these; or all from `start` on, afresh. A training is never begun again: it goes on."""
        for name in (*only, *([start] if start else [])):
            if name not in STAGES:
                raise InputError(f"unknown stage `{name}`", where="egpo run", fix=nearest(name, STAGES))
        if only and start:
            raise InputError("--only and --from", where="egpo run", fix="leave one of them out")
        if start:
            later = STAGES[STAGES.index(start) :]
            return cls(later, later)
        return cls(tuple(name for name in STAGES if name in only)) if only else cls()
