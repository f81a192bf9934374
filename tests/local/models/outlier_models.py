"""Small models of the shapes of Qwen2.5, Qwen3 and Llama 3, with the outliers of trained models by construction.

Trained models have a few channels of the residual stream far larger than the others, at all tokens, and single tokens
at which one of these channels is larger still, because a neuron of an early MLP writes it there. Random weights have
neither, and round far better than trained ones. Here both are built in:

- Channels CHANNELS: the rows of `o_proj` and `down_proj` that write them are CHANNEL_FACTOR times larger.
- Tokens SINKS, the text's first one and a delimiter: their embedding has a value in channel MARK, which is 0 at all
  other tokens and which nothing else writes. One neuron of the first MLP reads that channel alone, and writes
  up to SINK_SIZE into the first of CHANNELS.
- Norms before the layers keep their weights at the outliers, so the layers read them.
- One dimension of every key head has a bias of KEY_BIAS, where the architecture has biases.

Weights of norms and other biases are random around 1 and 0, so that leaving one out shows. `outlier_figures` measures
the outliers of any model; benchmarks/self_check.py prints them.
"""

import copy
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from egpo.local.models.attention import ATTENTION_NAME
from egpo.local.models.self_check import TEXT

CHANNELS, MARK = (7, 50), 3
CHANNEL_FACTOR, SINK_SIZE, KEY_BIAS, QUERY_FACTOR = 15.0, 1000.0, 10.0, 2.0
SINKS = ("A", ".")

_SIZES = {
    "vocab_size": 300,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_QWEN = {"rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, **_SIZES}

FAMILIES = {
    "qwen2.5": Qwen2Config(tie_word_embeddings=True, **_QWEN),
    "qwen2.5-untied": Qwen2Config(tie_word_embeddings=False, **_QWEN),
    "qwen3": Qwen3Config(tie_word_embeddings=True, head_dim=128, **_QWEN),
    "llama3": LlamaConfig(tie_word_embeddings=False, rms_norm_eps=1e-5, rope_parameters=_LLAMA3, **_SIZES),
    "llama3-tied": LlamaConfig(tie_word_embeddings=True, rms_norm_eps=1e-5, rope_parameters=_LLAMA3, **_SIZES),
}


@torch.no_grad()
def build_outlier_model(family, tokenizer, seed=0):
    """Return a model in float32. `tokenizer` gives the numbers of the SINKS."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(FAMILIES[family]))
    layers, embedding = model.base_model.layers, model.get_input_embeddings().weight
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            weight.normal_(1, 0.2)
        elif name.endswith("bias"):
            weight.normal_()
        elif "layers" in name:
            weight.normal_(0, weight.shape[1] ** -0.5)
        if name.endswith(("q_proj.weight", "q_norm.weight")):
            weight *= QUERY_FACTOR
    sinks = [tokenizer.convert_tokens_to_ids(token) for token in SINKS]
    embedding[:, MARK] = 0
    embedding[sinks, MARK] = 10 * embedding.std()
    for layer in layers:
        for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
            part.weight[list(CHANNELS)] *= CHANNEL_FACTOR
            part.weight[MARK] = 0
        if layer.self_attn.k_proj.bias is not None:
            layer.self_attn.k_proj.bias[:: layer.self_attn.head_dim] = KEY_BIAS
    text_1T = torch.tensor([tokenizer(TEXT, add_special_tokens=False)["input_ids"][:120]])
    _add_sink_neuron(model, text_1T)
    return model


def _add_sink_neuron(model, text_1T):
    """Let the first neuron of the first MLP write up to SINK_SIZE at the tokens of a text that have the mark."""
    mlp, seen = model.base_model.layers[0].mlp, []
    hook = mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][..., MARK].max()))
    model(text_1T, use_cache=False)
    hook.remove()
    size = 8.0  # of gate and up, where silu(8) is 8
    for part in (mlp.gate_proj, mlp.up_proj):
        part.weight[0] = 0
        part.weight[0, MARK] = size / seen[0]
    mlp.down_proj.weight[:, 0] = 0
    mlp.down_proj.weight[CHANNELS[0], 0] = SINK_SIZE / size**2


@dataclass(frozen=True)
class OutlierFigures:
    """Over the layers' outputs: the largest channel over the median one, and the kurtosis of the channels.

    `usual`: mean over the tokens of the median layer. `peak`: the token and layer with the largest channel.
    """

    usual_ratio: float
    usual_kurtosis: float
    peak_ratio: float
    peak_kurtosis: float
    peak_size: float


@torch.no_grad()
def outlier_figures(model, tokens):
    """Measure the residual stream after every layer but the last, whose output transformers gives normed."""
    model.set_attn_implementation("sdpa")
    states = model(torch.tensor([tokens], device=model.device), output_hidden_states=True, use_cache=False)
    model.set_attn_implementation(ATTENTION_NAME)
    hidden_LTD = torch.stack([layer[0].double().cpu() for layer in states.hidden_states[1:-1]])
    size_LTD = hidden_LTD.abs()
    ratio_LT = size_LTD.amax(-1) / size_LTD.median(-1).values
    centred_LTD = hidden_LTD - hidden_LTD.mean(-1, keepdim=True)
    kurtosis_LT = centred_LTD.pow(4).mean(-1) / centred_LTD.square().mean(-1).square()
    layer, token = divmod(int(size_LTD.amax(-1).argmax()), len(tokens))
    return OutlierFigures(
        usual_ratio=float(ratio_LT.mean(-1).median()),
        usual_kurtosis=float(kurtosis_LT.mean(-1).median()),
        peak_ratio=float(ratio_LT[layer, token]),
        peak_kurtosis=float(kurtosis_LT[layer, token]),
        peak_size=float(size_LTD[layer, token].max()),
    )
