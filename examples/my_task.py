"""A task of one's own: put words in order. Use it as `my_task:SortWords`."""

import random

from egpo.rewards.thinking import split_thinking
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem

WORDS = ("apple", "bread", "cloud", "dream", "earth", "flame", "grape", "house", "island", "juice", "knife", "lemon")


class SortWords:
    def __init__(self, size: int = 256, seed: int = 0):
        rng = random.Random(seed)
        lists = {tuple(rng.sample(WORDS, 4)) for _ in range(4 * size)}
        self.lists = sorted(lists)[: 2 * size]

    def problems(self, split):
        half = len(self.lists) // 2
        chosen = self.lists[:half] if split == "train" else self.lists[half:]
        return [Problem(" ".join(words), (), " ".join(sorted(words))) for words in chosen]

    def prompt(self, problem):
        ask = "Think inside <think> and </think>, then write these words in alphabetical order: "
        return [{"role": "user", "content": ask + problem.key}]

    def judge(self, problem, text):
        answer = split_thinking(text).answer.split()
        if answer == problem.ground_truth.split():
            return Verdict(1.0, True, "correct")
        same_words = sorted(answer) == sorted(problem.key.split())
        return Verdict(0.0, False, "wrong_order" if same_words else "other_words")

    def gold(self, problem):
        return f"<think>The first letters decide.</think> {problem.ground_truth}"
