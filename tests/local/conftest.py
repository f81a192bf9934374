"""Tiny random models of four architectures, with a tokenizer of their own, in folders as `save_pretrained` writes."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from egpo.config.schema import Model
from egpo.local.models.loading import choose_device, load_policy
from tests.local.device import MODEL

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>"]
_VOCABULARY = 300

# Weights large enough that a wrong mask or position shows in the logits.
_SHARED = {
    "initializer_range": 0.25,
    "vocab_size": _VOCABULARY,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    **_SHARED,
}
CONFIGS = {
    "qwen3": Qwen3Config(head_dim=8, tie_word_embeddings=True, **_SIZES),
    "qwen2": Qwen2Config(tie_word_embeddings=False, **_SIZES),
    "llama": LlamaConfig(tie_word_embeddings=False, **_SIZES),
    "gpt2": GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, **_SHARED),
}


def build_tokenizer():
    """Bytes, one token each, and the tags: any text goes in and comes back."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(TAGS)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|im_end|>", chat_template=TEMPLATE
    )


def build_model(shape, seed=0):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIGS[shape])


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """`model_folder("qwen3")` is the path of a folder with a tiny random model, made once."""
    made = {}

    def folder(shape="qwen3"):
        if shape not in made:
            path = tmp_path_factory.mktemp(shape)
            build_model(shape).save_pretrained(path)
            build_tokenizer().save_pretrained(path)
            made[shape] = path
        return made[shape]

    return folder


@pytest.fixture
def load(model_folder):
    """`load("qwen3")` is a fresh policy."""
    return lambda shape="qwen3", **settings: load_policy(Model(path=str(model_folder(shape)), **{**MODEL, **settings}))


@pytest.fixture
def load_on_cpu(model_folder):
    """As `load`, wherever the tests run."""
    return lambda shape="qwen3": load_policy(Model(path=str(model_folder(shape)), device="cpu"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Tensors this small gain nothing from a second thread, and lose a hundredfold where test workers share cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def gpu():
    return choose_device("cuda")


@pytest.fixture
def load_on_gpu(model_folder):
    """`load_on_gpu("qwen3")` is a fresh policy on the GPU, in float32 by default."""

    def load_shape(shape="qwen3", dtype="float32", **settings):
        return load_policy(Model(path=str(model_folder(shape)), device="cuda", dtype=dtype, **settings))

    return load_shape
