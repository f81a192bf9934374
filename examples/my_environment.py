"""Example of a user's environment: a vending machine. Its name is `my_environment:VendingMachine`."""

import random

from egpo.environments import Environment
from egpo.rewards.verdict import Verdict


class VendingMachine(Environment):
    def reset(self, seed: int = 0, **row):
        rng = random.Random(seed)
        self.wanted, self.price = rng.choice(("tea", "juice", "soup")), rng.randint(2, 5)
        self.paid, self.taken = 0, []
        return f" I want {self.wanted}; it costs {self.price}."

    def insert(self, coin: int) -> int:
        """Insert a coin, and tell how much is paid.

        Args:
            coin: 1 or 2.
        """
        if coin not in (1, 2):
            raise ValueError("coins are 1 and 2")
        self.paid += coin
        return self.paid

    def press(self, item: str) -> str:
        """Press the button of an item.

        Args:
            item: Its name.
        """
        if self.paid != self.price:
            raise ValueError(f"{self.paid} is paid, the price is {self.price}")
        self.paid, self.taken = 0, [*self.taken, item]
        return f"here is your {item}"

    def verdict(self, turns):
        correct = self.taken == [self.wanted]
        return Verdict(float(correct), correct, "correct" if correct else "other_item" if self.taken else "no_item")
