"""Write small GGUF files for tests, from the format's description: the writer shares nothing with the reader."""

import struct

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

ALIGNMENT = 32
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 50000.0,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": 2,
}
CONFIGS = {
    "llama": LlamaConfig(tie_word_embeddings=True, rms_norm_eps=1e-5, **SIZES),
    "qwen2": Qwen2Config(tie_word_embeddings=False, **SIZES),
    "qwen3": Qwen3Config(tie_word_embeddings=True, head_dim=32, **SIZES),
}
NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "gate_proj": "ffn_gate", "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}  # fmt: skip


def _text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(value):
    """Return type and bytes of a metadata value."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _text(value)
    kind = {4: 5}.get(_value(value[0])[0], _value(value[0])[0])  # llama.cpp writes arrays of integers as signed
    return 9, struct.pack("<IQ", kind, len(value)) + b"".join(_value(item)[1] for item in value)


def write_gguf(path, metadata, tensors, version=3):
    """`tensors`: name to (shape as torch has it, number of the type, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, content = _value(value)
        head += _text(key) + struct.pack("<I", kind) + content
    parts, offset = [], 0
    for name, (shape, kind, content) in tensors.items():
        sizes = tuple(reversed(shape))
        head += _text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)
        parts += [content, b"\0" * (-len(content) % ALIGNMENT)]
        offset += len(content) + len(parts[-1])
    path.write_bytes(b"".join([head, b"\0" * (-len(head) % ALIGNMENT), *parts]))
    return path


def build_model(architecture, seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[architecture])
    with torch.no_grad():  # or biases and norms would be as they were initialised, and could be left out unnoticed
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def build_tokenizer():
    """Byte-level BPE with a few merges, split as SmolLM2 splits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(
        ["the cat sat on the mat in the 12th hour of the day, and then it sat there"] * 9, trainer
    )
    return tokenizer


def tokenizer_metadata():
    import json

    model = json.loads(build_tokenizer().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    tokens += [f"[unused{index}]" for index in range(320 - len(tokens))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * 317,
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]],
        # As in files that keep the base model's metadata: the turn's end is the template's <|im_end|>.
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": TEMPLATE,
    }


def model_metadata(architecture):
    config = CONFIGS[architecture]
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": width,
        "attention.value_length": width,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": 50000.0,
        "rope.dimension_count": width,
    }
    return {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in values.items()}}


def model_tensors(model, architecture, kind=0):
    """Return the tensors as llama.cpp's converter names and orders them. `kind` of matrices: F32 0, F16 1, Q8_0 8."""
    found = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        *_, part, what = name.split(".")
        place = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
        array = weight.float().numpy()
        if architecture == "llama" and part in ("q_proj", "k_proj"):
            heads = model.config.num_attention_heads if part == "q_proj" else model.config.num_key_value_heads
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        used = kind if array.ndim > 1 else 0
        found[f"{place}{NAMES[part]}.{what}"] = (array.shape, used, _encoded(array, used))
    return found


def _encoded(array, kind):
    if kind == 0:
        return np.ascontiguousarray(array, "<f4").tobytes()
    if kind == 1:
        return array.astype("<f2").tobytes()
    blocks = array.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype("<f2")
    integers = np.round(blocks / scale.astype(np.float32)).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), integers.view(np.uint8)], axis=1).tobytes()


def write_model(path, architecture="llama", kind=0, metadata=None, without=()):
    """Write a whole tiny model, with changed or left out metadata."""
    values = {**model_metadata(architecture), **tokenizer_metadata(), **(metadata or {})}
    values = {key: value for key, value in values.items() if not key.startswith(tuple(without) or ("\0",))}
    return write_gguf(path, values, model_tensors(build_model(architecture), architecture, kind))
