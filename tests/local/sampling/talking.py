"""Environments for a model that writes random bytes: the user goes on talking, whatever it says."""

import hashlib
import os
import time

from egpo.environments import Environment
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem


def _digest(*texts):
    return int.from_bytes(hashlib.sha256("\n".join(texts).encode()).digest()[:4], "big")


class Talk(Environment):
    """The user's words depend on what the assistant has said; the number of turns, on the row."""

    delay_s = 0.0
    tools_in_prompt = True  # the tests' template has no tools

    def reset(self, num_turns=3, ground_truth="", **row):
        self._left, self._said = num_turns - 1, ground_truth
        return

    def user_turn(self):
        if sign := os.environ.get("EGPO_TEST_SIGN"):  # tells a test that an episode is under way
            with open(sign, "a") as file:
                file.write(".")
        time.sleep(self.delay_s * (_digest(self._said, str(self._left)) % 7))
        if not self._left:
            return None
        self._left -= 1
        return f"go on, {self._left} " + "x" * (_digest(self._said, str(self._left)) % 9)

    def look(self, at: str) -> str:
        """Look.

        Args:
            at: Where.
        """
        return f"nothing at {at}"

    def verdict(self, turns):
        reward = float(_digest(*(turn.text for turn in turns)) % 2)
        return Verdict(reward, reward == 1, "drawn")


class SlowTalk(Talk):
    delay_s = 0.004


class Talking:
    """A task whose problems have 1 to 4 turns. Its environment is an outside class, so it runs in worker processes."""

    environment = "tests.local.sampling.talking:SlowTalk"

    def __init__(self, texts=("a", "bb ccc", "a longer prompt than the others", "dd"), turns=(3, 1, 4, 2)):
        self._problems = [
            Problem(text, ({"role": "user", "content": text},), text, extra={"num_turns": count})
            for text, count in zip(texts, turns, strict=True)
        ]

    def problems(self, split):
        return self._problems

    def prompt(self, problem):
        return list(problem.messages)

    def judge(self, problem, text):
        raise AssertionError("episodes are judged by their environments")

    def gold(self, problem):
        return ""
