"""The training jobs of the GPU benchmarks: models of Qwen3's architecture with random weights, prompts of random words.

The lengths of the responses are fixed in advance and the same for every contender.
"""

import gc
import random
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import _words

VOCABULARY = 151_936


@dataclass(frozen=True)
class Shape:
    """The sizes of a model of Qwen3's architecture, with heads of 128 dimensions and one key head for two to four query
    heads."""

    hidden: int
    inner: int
    layers: int
    heads: int
    keys: int = 8
    tied: bool = True

    def config(self, vocabulary: int = VOCABULARY, positions: int = 4096) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.keys,
            head_dim=128,
            max_position_embeddings=positions,
            tie_word_embeddings=self.tied,
            bos_token_id=None,
            pad_token_id=_words.TAGS["<pad>"],
            eos_token_id=vocabulary - 1,
        )


SHAPES = {
    "0.6B": Shape(1024, 3072, 28, 16),
    "1.7B": Shape(2048, 6144, 28, 16),
    "4B": Shape(2560, 9728, 36, 32),
}


@dataclass(frozen=True)
class Job:
    """A training job: `prompts` prompts of `prompt_tokens` tokens, and `group` responses of `shortest` to `longest`
    tokens to each."""

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

    def config(self) -> Qwen3Config:
        return SHAPES[self.shape].config(self.vocabulary, max(4096, self.prompt_tokens + self.longest))

    @property
    def lengths(self) -> list[int]:
        """Return the number of tokens of every response, drawn uniformly between `shortest` and `longest`."""
        rng = random.Random(0)
        return [rng.randint(self.shortest, self.longest) for _ in range(self.rows)]

    @property
    def new_tokens(self) -> int:
        return sum(self.lengths)

    def texts(self) -> list[str]:
        return _words.prompts_of_words(self.prompts, self.prompt_tokens, self.vocabulary)

    def make_tokenizer(self) -> PreTrainedTokenizerFast:
        return _words.make_tokenizer(self.vocabulary)

    def uniforms(self) -> torch.Tensor:
        """Return the random numbers for sampling, chosen so that every response ends at its fixed length.

        A number close to 1 selects the end token, which comes last in the vocabulary; all other numbers are smaller.
        """
        drawn = np.random.default_rng(0).random((self.rows, self.longest)) * (1 - 15 / self.vocabulary)
        for row, length in enumerate(self.lengths):
            drawn[row, length - 1] = 1 - 1e-12
        return torch.from_numpy(drawn)


def make_model(job: Job) -> Qwen3ForCausalLM:
    """Return a model with random weights, in bfloat16 on the GPU."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        try:
            return Qwen3ForCausalLM(job.config())
        finally:
            torch.set_default_dtype(torch.float32)


def save(job: Job, folder: Path) -> None:
    """Write config and tokenizer. The weights are drawn when the folder is opened."""
    job.config().save_pretrained(folder)
    job.make_tokenizer().save_pretrained(folder)


def save_with_weights(job: Job, model: Qwen3ForCausalLM, folder: Path) -> None:
    """Write a whole model folder, for engines that read one. Does nothing if the folder has weights already.

    The weights come last, by renaming: a process that is killed here leaves no incomplete weights to the next one.
    """
    if list(folder.glob("*.safetensors")):
        return
    with TemporaryDirectory(dir=folder) as place:
        job.make_tokenizer().save_pretrained(place)
        model.save_pretrained(place)
        for file in sorted(Path(place).iterdir(), key=lambda file: file.suffix == ".safetensors"):
            file.replace(folder / file.name)


class OwnMemory:
    """The GPU memory of one of several contenders that take turns in one process: what it holds between its turns, and
    the peak of a turn without what the others hold. Memory that torch has not allocated is not counted."""

    def __init__(self) -> None:
        self._held = self._before = 0

    def begin(self, *, alone: bool = False) -> None:
        """Begin a turn. `alone`: no other contender is in the process, and cached memory stays, as in a real run."""
        if not alone:
            gc.collect()
            torch.cuda.empty_cache()  # free what the previous contender has cached
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated()

    def end(self) -> float:
        """Return the peak in GiB since `begin`."""
        peak = torch.cuda.max_memory_allocated() - self._before + self._held
        self._held += torch.cuda.memory_allocated() - self._before
        return peak / 2**30
