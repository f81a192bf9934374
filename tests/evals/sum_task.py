"""A task whose answers a test can write by hand."""

from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem


class Sums:
    """`3 + 4` wants `7`. A response that is no number is `unreadable`; `boom` breaks the judge."""

    def __init__(self, count=6):
        self._count = count

    def problems(self, split):
        return [Problem(f"{split} {i}", self._asked(i), str(i + 1)) for i in range(self._count)]

    def prompt(self, problem):
        return list(problem.messages)

    def judge(self, problem, text):
        assert text != "boom"
        if not text.strip().isdecimal():
            return Verdict(0.0, False, "unreadable")
        right = text.strip() == problem.ground_truth
        return Verdict(float(right), right, "correct" if right else "wrong")

    def gold(self, problem):
        return problem.ground_truth

    def _asked(self, number):
        return ({"role": "user", "content": f"{number} + 1"},)
