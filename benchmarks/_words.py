"""Vocabulary, tokenizer and task that the jobs of benchmarks/embedded_cpu.py and benchmarks/one_gpu.py share.

A word is a token. Every prompt ends with the opening tag, so that all responses think and EGPO does its full work.
"""

import random
from collections.abc import Sequence

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from egpo.rewards.verdict import Verdict
from egpo.tasks.protocol import Problem, user_message

TAGS = {"<think>": 0, "</think>": 1, "<pad>": 2}


def prompts_of_words(num_prompts: int, num_tokens: int, vocabulary: int) -> list[str]:
    rng = random.Random(1)
    words = range(len(TAGS), vocabulary - 1)
    return [
        " ".join([*(f"w{rng.choice(words)}" for _ in range(num_tokens - 1)), "<think>"]) for _ in range(num_prompts)
    ]


def make_tokenizer(vocabulary: int, special: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose last word ends a response. `special` tokens take the place of the words before it."""
    end = vocabulary - 1
    numbers = {**TAGS, **{f"w{number}": number for number in range(len(TAGS), end - len(special))}, "<eos>": end}
    numbers |= {token: end - 1 - place for place, token in enumerate(special)}
    words = Tokenizer(models.WordLevel(numbers, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(list(special))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    return tokenizer


def reward(text: str) -> float:
    """Return the reward of a response: 1 if the number of its first word is even. Most groups have both rewards."""
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    return float(first.startswith("w") and int(first[1:]) % 2 == 0)


class Words:
    """A task whose problems are prompts of random words."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split} {number}", user_message(text), "") for number, text in enumerate(self._texts)]

    def prompt(self, problem: Problem) -> list[dict[str, str]]:
        return list(problem.messages)

    def judge(self, problem: Problem, text: str) -> Verdict:
        earned = reward(text)
        return Verdict(earned, earned == 1.0, "even" if earned else "odd")

    def gold(self, problem: Problem) -> str:
        return "w4"
