"""The order of problems: every epoch all of them, shuffled anew. Where it stands is one number."""

from collections.abc import Callable, Sequence

from egpo.errors import InputError
from egpo.local.draws import Draws
from egpo.tasks import Problem


class ProblemStream:
    """Problems without end. `admits` may leave some out (prompts too long); they are counted in `num_left_out`.

    The order is a function of the seed and the epoch, so that `position` and `num_left_out` are all its state.
    """

    def __init__(self, problems: Sequence[Problem], seed: int, admits: Callable[[Problem], bool]) -> None:
        if not len(problems):
            raise InputError("the task has no problems to train on", where="task", fix="prepare its training split")
        self._problems, self._seed, self._admits = problems, seed, admits
        self.position = self.num_left_out = 0
        self._order: tuple[int, list[int]] = (-1, [])

    @property
    def epoch(self) -> float:
        """Passes over the data so far, in whole and part."""
        return self.position / len(self._problems)

    def take(self, count: int) -> list[Problem]:
        """The next `count` that are admitted."""
        taken: list[Problem] = []
        refused_in_a_row = 0
        while len(taken) < count:
            problem = self._next()
            if self._admits(problem):
                taken.append(problem)
                refused_in_a_row = 0
                continue
            self.num_left_out += 1
            refused_in_a_row += 1
            if refused_in_a_row >= 2 * len(self._problems):
                raise InputError(
                    f"every one of the {len(self._problems)} prompts is longer than allowed",
                    where="rollout.max_prompt_tokens",
                    fix="raise it",
                )
        return taken

    def _next(self) -> Problem:
        epoch, place = divmod(self.position, len(self._problems))
        if self._order[0] != epoch:
            self._order = (epoch, Draws(self._seed, epoch, "order").permutation(len(self._problems), "problems"))
        self.position += 1
        return self._problems[self._order[1][place]]
