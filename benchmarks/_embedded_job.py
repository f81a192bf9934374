"""The training jobs of the CPU benchmarks: a small model of Qwen3's architecture, prompts of random words, responses of
one fixed length."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import _words


@dataclass(frozen=True)
class Job:
    """A training job with `group` responses of `new_tokens` tokens per prompt. With the default `hidden` and
    `vocabulary` the model has 2.8 million parameters in float32."""

    prompts: int = 16
    group: int = 8
    prompt_tokens: int = 48
    new_tokens: int = 96
    hidden: int = 192
    vocabulary: int = 512

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    def texts(self) -> list[str]:
        return _words.prompts_of_words(self.prompts, self.prompt_tokens, self.vocabulary)

    def make_tokenizer(self) -> PreTrainedTokenizerFast:
        return _words.make_tokenizer(self.vocabulary)

    def make_model(self) -> Qwen3ForCausalLM:
        torch.manual_seed(0)
        heads = self.hidden // 48
        shape = Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.hidden * 8 // 3,
            num_hidden_layers=6,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            head_dim=64,
            max_position_embeddings=max(256, self.prompt_tokens + self.new_tokens),
            tie_word_embeddings=True,
            bos_token_id=None,
            pad_token_id=_words.TAGS["<pad>"],
            eos_token_id=self.vocabulary - 1,
        )
        return Qwen3ForCausalLM(shape)

    def save(self, folder: Path) -> None:
        self.make_model().save_pretrained(folder)
        self.make_tokenizer().save_pretrained(folder)
