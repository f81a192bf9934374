"""The jobs of benchmarks/one_gpu.py: Qwen3 shapes with random weights, prompts of random words, responses of lengths
that are known beforehand, the same for every contender.

A word is a token. The last word of the vocabulary ends a response. Every prompt ends with the opening tag, so that all
responses think and EGPO has all its work to do.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from egpo.rewards.verdict import Verdict
from egpo.tasks.protocol import Problem, user

VOCABULARY = 151_936
_TAGS = {"<think>": 0, "</think>": 1, "<pad>": 2}


@dataclass(frozen=True)
class Shape:
    """Of Qwen3: heads of 128, one of keys for two to four of queries."""

    hidden: int
    inner: int
    layers: int
    heads: int
    keys: int = 8
    tied: bool = True

    def config(self, vocabulary: int = VOCABULARY) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.keys,
            head_dim=128,
            max_position_embeddings=4096,
            tie_word_embeddings=self.tied,
            bos_token_id=None,
            pad_token_id=_TAGS["<pad>"],
            eos_token_id=vocabulary - 1,
        )


SHAPES = {
    "0.6B": Shape(1024, 3072, 28, 16),
    "1.7B": Shape(2048, 6144, 28, 16),
    "4B": Shape(2560, 9728, 36, 32),
}


@dataclass(frozen=True)
class Job:
    """`prompts` of `prompt_tokens`, `group` responses to each, of `shortest` to `longest` tokens."""

    shape: str
    shortest: int
    longest: int
    prompts: int = 16
    group: int = 16
    prompt_tokens: int = 128
    vocabulary: int = VOCABULARY

    @property
    def end(self) -> int:
        """The token that ends a response."""
        return self.vocabulary - 1

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def lengths(self) -> list[int]:
        """Of every row, drawn once: uniform, both ends included."""
        rng = random.Random(0)
        return [rng.randint(self.shortest, self.longest) for _ in range(self.rows)]

    @property
    def new_tokens(self) -> int:
        return sum(self.lengths)

    def texts(self) -> list[str]:
        rng = random.Random(1)
        words = range(len(_TAGS), self.end)
        return [
            " ".join([*(f"w{rng.choice(words)}" for _ in range(self.prompt_tokens - 1)), "<think>"])
            for _ in range(self.prompts)
        ]

    def uniforms(self) -> torch.Tensor:
        """Draws under which row b ends with its own length: the last word is drawn where the draw is all but 1, and
        nowhere else, since the words are nearly alike in probability and 15 of them lie above all other draws."""
        drawn = np.random.default_rng(0).random((self.rows, self.longest)) * (1 - 15 / self.vocabulary)
        for row, length in enumerate(self.lengths):
            drawn[row, length - 1] = 1 - 1e-12
        return torch.from_numpy(drawn)


def reward(text: str) -> float:
    """1 where the first word has an even number: cheap, and different within most groups."""
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    return float(first.startswith("w") and int(first[1:]) % 2 == 0)


def make_tokenizer(job: Job) -> PreTrainedTokenizerFast:
    vocabulary = {**_TAGS, **{f"w{number}": number for number in range(len(_TAGS), job.end)}, "<eos>": job.end}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    return tokenizer


def make_model(job: Job) -> Qwen3ForCausalLM:
    """In bfloat16 on the GPU."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        try:
            return Qwen3ForCausalLM(SHAPES[job.shape].config(job.vocabulary))
        finally:
            torch.set_default_dtype(torch.float32)


def save(job: Job, folder: Path) -> None:
    """Config and tokenizer: the weights are drawn where the folder is opened."""
    SHAPES[job.shape].config(job.vocabulary).save_pretrained(folder)
    make_tokenizer(job).save_pretrained(folder)


class Words:
    """A job as a task."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split} {number}", user(text), "") for number, text in enumerate(self._texts)]

    def prompt(self, problem: Problem) -> list[dict[str, str]]:
        return list(problem.messages)

    def judge(self, problem: Problem, text: str) -> Verdict:
        earned = reward(text)
        return Verdict(earned, earned == 1.0, "even" if earned else "odd")

    def gold(self, problem: Problem) -> str:
        return "w4"
