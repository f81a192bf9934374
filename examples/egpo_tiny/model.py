"""The architecture of egpo-tiny: a Qwen3 of 2.6 million parameters."""

from pathlib import Path

from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config

from examples.egpo_tiny.tokenizer import END_OF_TEXT, TURN_END, VOCAB_SIZE, save_tokenizer

CONTEXT = 1024
"""Maximum sequence length, in tokens. Prompts have up to 350 tokens, responses up to 130."""


def model_config(**token_ids: int | None) -> Qwen3Config:
    """Return the config: large enough for the tasks' arithmetic, small enough that two cores sample 128 responses in
    seconds."""
    return Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        initializer_range=0.02,
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
        **token_ids,
    )


def write_model_folder(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write config.json, generation_config.json and the tokenizer. The weights are drawn by `model.init: random`."""
    eos, pad = (tokenizer.convert_tokens_to_ids(token) for token in (TURN_END, END_OF_TEXT))
    save_tokenizer(tokenizer, folder)
    model_config(bos_token_id=None, eos_token_id=eos, pad_token_id=pad).save_pretrained(folder)
    GenerationConfig(do_sample=True, eos_token_id=eos, pad_token_id=pad).save_pretrained(folder)
