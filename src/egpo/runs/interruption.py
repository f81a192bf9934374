"""A run that somebody asked to end."""

from egpo.errors import EgpoError


class RunInterruptedError(EgpoError):
    """The run has ended because somebody asked for it: exit code 130 or 143, as shells expect."""

    def __init__(self, signum: int, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.exit_code = 128 + signum
