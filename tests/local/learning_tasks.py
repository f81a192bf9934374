"""Tasks that a tiny random model learns within seconds, over an alphabet of eight letters."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem

LETTERS = "abcdefgh"
_SPECIAL = ["<pad>", "<end>", "<go>", "<think>", "</think>"]


def letters_tokenizer():
    """One token a letter; the prompt is the user's text and a mark to go."""
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(_SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<end>",
        chat_template="{{ messages[-1].content }}<go>",
        clean_up_tokenization_spaces=False,
    )


class _Letters:
    def __init__(self, prompts):
        self._prompts = prompts

    def problems(self, split):
        return [Problem(text, ({"role": "user", "content": text},), text) for text in self._prompts]

    def prompt(self, problem):
        return list(problem.messages)

    def gold(self, problem):
        return problem.ground_truth


class Bandit(_Letters):
    """Eight arms, one prompt: only the letter `c` pays."""

    def __init__(self):
        super().__init__(["a"])

    def judge(self, problem, text):
        right = text[:1] == "c"
        return Verdict(float(right), right, "correct" if right else "wrong")

    def gold(self, problem):
        return "c"


class Copy(_Letters):
    """Say the prompt's two letters: half a point for each in its place."""

    def __init__(self):
        super().__init__([first + second for first in "abcd" for second in "abcd"])

    def judge(self, problem, text):
        written = text.replace(" ", "")
        parts = [written[i : i + 1] == letter for i, letter in enumerate(problem.ground_truth)]
        return Verdict(sum(parts) / 2, all(parts), "correct" if all(parts) else "wrong")
