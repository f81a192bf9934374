"""Environments as TRL's documentation writes them, without a line for egpo; and some that misbehave."""

import os
import random
import time


class IncrementEnv:
    """The first example of TRL's guide: no base class, no `get_reward`; a reward function reads the instance."""

    def reset(self, **kwargs) -> str | None:
        self.counter = 0

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter


def counted(environments, **kwargs):
    return [float(environment.counter) for environment in environments]


def counted_at_the_end(prompts, completions, environments, target):
    assert completions[0][0]["role"] == "assistant"
    return [float(environment.counter == wanted) for environment, wanted in zip(environments, target, strict=True)]


class GuessEnv:
    """A game with a result of `reset`, errors by exceptions, helpers with an underscore, and its own reward."""

    def __init__(self):
        self.reward = 0.0
        self.done = False

    def reset(self, word: str = "tea", **kwargs) -> str | None:
        self._word, self.reward, self.done = word, 0.0, False
        return f"\nThe word has {len(word)} letters."

    def guess(self, word: str, hard: bool | None = None) -> str:
        """
        Guess the word.

        Args:
            word: The guess.
            hard: Whether to be strict.
        """
        if self.done:
            raise ValueError("Game over.")
        self.reward, self.done = float(word == self._word), word == self._word
        return self._told(word)

    def _told(self, word):
        return "right" if word == self._word else "wrong"

    def get_reward(self) -> float:
        return self.reward


class Misbehaving:
    def reset(self, mode: str = "", **kwargs) -> str | None:
        self.items = []
        if mode == "reset raises":
            raise RuntimeError("no database")
        if mode == "reset returns a number":
            return 7
        if mode == "reset hangs":
            time.sleep(600)
        self._mode = mode
        return None

    def act(self, what: str) -> object:
        """
        Do something.

        Args:
            what: What to do.
        """
        print("printed into the middle of the protocol", flush=True)
        self.items.append(what)
        return {
            "raise": lambda: self._raise(LookupError("no such thing")),
            "disconnect": lambda: self._raise(ConnectionError("gone")),
            "bug": lambda: undefined_name,  # noqa: F821
            "exit": lambda: self._raise(SystemExit(3)),
            "hang": lambda: time.sleep(600),
            "spin": self._spin,
            "die": lambda: os._exit(7),
            "big": lambda: "x" * 10_000_000,
            "object": lambda: object(),
            "nan": lambda: float("nan"),
            "bytes": lambda: b"\xff\x00",
            "surrogate": lambda: "\ud800",
            "none": lambda: None,
            "nested": lambda: {"a": [1, 2.5, None, True, "é"]},
            "items": lambda: self.items,
        }.get(what, lambda: "done " + what)()

    def _raise(self, error):
        raise error

    def _spin(self):
        while True:
            pass

    def get_reward(self) -> float:
        return {"reward nan": float("nan"), "reward text": "much"}.get(self._mode, float(len(self.items)))


class NoTools:
    def reset(self, **kwargs):
        return None


class NoReset:
    def act(self, what: str) -> str:
        """Do. Args: what: it."""
        return what


class NoDocstring:
    def reset(self, **kwargs):
        return None

    def act(self, what):
        return what

    def get_reward(self):
        return 0.0


class OwnRandomness:
    deterministic = False

    def reset(self, **kwargs):
        return f" {random.random()}"

    def act(self, what: str) -> str:
        """
        Act.

        Args:
            what: What.
        """
        return what

    def get_reward(self):
        return 1.0
