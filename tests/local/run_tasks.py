"""Tasks for whole runs of a tiny random model that writes random bytes."""

import random

from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem


class Sparse:
    """Write characters of even code: a share of the reward for each. The prompt has a random word in it, drawn from the
    global generator, whose state a checkpoint must hold."""

    num_train = 7

    def problems(self, split):
        count = self.num_train if split == "train" else 3
        return [Problem(f"{split} {i}", ({"role": "user", "content": f"write {i}"},), str(i)) for i in range(count)]

    def prompt(self, problem):
        return [{"role": "user", "content": f"{problem.messages[0]['content']} {random.randrange(1000)}"}]

    def judge(self, problem, text):
        reward = sum(ord(letter) % 2 == 0 for letter in text) / max(1, len(text))
        return Verdict(reward, reward > 0.5, "even" if reward > 0.5 else "odd")

    def gold(self, problem):
        return "bdfh"


class Empty(Sparse):
    """No problems."""

    num_train = 0


class Untested(Sparse):
    """Nothing held out."""

    def problems(self, split):
        return super().problems(split) if split == "train" else []


class Breaks(Sparse):
    """Fails, with an error of no kind of ours, in the fourth step or so."""

    def __init__(self):
        self._asked = 0

    def prompt(self, problem):
        self._asked += 1
        assert 1 / (self._asked < 15)
        return list(problem.messages)
