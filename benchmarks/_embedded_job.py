"""The job of benchmarks/embedded_cpu.py: a small Qwen3 shape, prompts of random words, responses of one exact length.

A word is a token. Every prompt ends with the opening tag, so that all responses think and EGPO has all its work to do.
"""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from egpo.rewards.verdict import Verdict
from egpo.tasks.protocol import Problem, user

PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 16, 8, 48, 96
ROWS = PROMPTS * GROUP
WORDS = [f"w{number}" for number in range(508)]
VOCABULARY = [*WORDS, "<think>", "</think>", "<pad>", "<eos>"]


def prompts() -> list[str]:
    rng = random.Random(0)
    return [" ".join([*rng.choices(WORDS, k=PROMPT_TOKENS - 1), "<think>"]) for _ in range(PROMPTS)]


def reward(text: str) -> float:
    """1 where the first word has an even number: cheap, and different within most groups."""
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    return float(first.startswith("w") and int(first[1:]) % 2 == 0)


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    return tokenizer


def make_model() -> Qwen3ForCausalLM:
    """2.8 million parameters in float32."""
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        pad_token_id=VOCABULARY.index("<pad>"),
        eos_token_id=VOCABULARY.index("<eos>"),
    )
    return Qwen3ForCausalLM(shape)


def save(folder: Path) -> None:
    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


class Words:
    """The job as a task."""

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split} {number}", user(text), "") for number, text in enumerate(prompts())]

    def prompt(self, problem: Problem) -> list[dict[str, str]]:
        return list(problem.messages)

    def judge(self, problem: Problem, text: str) -> Verdict:
        earned = reward(text)
        return Verdict(earned, earned == 1.0, "even" if earned else "odd")

    def gold(self, problem: Problem) -> str:
        return "w0"
