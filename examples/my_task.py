"""Example of a user's task: put words in alphabetical order. Name it `my_task:SortWords` in a recipe."""

import itertools
import random

from egpo.rewards.answers import split_thinking
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem

WORDS = ("apple", "bread", "cloud", "dream", "earth", "flame", "grape", "house", "juice", "knife", "lemon", "mango")


class SortWords:
    def __init__(self, size: int = 256, seed: int = 0):
        rng = random.Random(seed)
        sets = list(itertools.combinations(WORDS, 5))
        rng.shuffle(sets)
        shown = [" ".join(rng.sample(words, 5)) for words in sets[: 2 * size]]
        self.splits = {"train": shown[::2], "test": shown[1::2]}

    def problems(self, split):
        ordered = [(" ".join(sorted(words.split())), words) for words in self.splits[split]]
        return [Problem(key, (), key, extra={"words": words}) for key, words in ordered]

    def prompt(self, problem):
        ask = "Think inside <think> and </think>, then write these words in alphabetical order: "
        return [{"role": "user", "content": ask + problem.extra["words"]}]

    def judge(self, problem, text):
        answer = split_thinking(text).answer.split()
        if answer == problem.ground_truth.split():
            return Verdict(1.0, True, "correct")
        same_words = sorted(answer) == problem.key.split()
        return Verdict(0.0, False, "wrong_order" if same_words else "other_words")

    def gold(self, problem):
        return f"<think>The first letters decide.</think> {problem.ground_truth}"
