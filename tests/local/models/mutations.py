"""Faults that an engine could have, put into the engine's pass alone: transformers computes the model as it is.

`MUTATIONS[name](policy)` is a context in which `policy` computes wrongly. A mutation that a model or a path cannot have
(a missing bias in a model without biases) is left out by `mutations_of`.
"""

import copy
from contextlib import contextmanager
from dataclasses import replace

import torch

from egpo.local.models import architectures
from egpo.local.models.packs import GroupLayout, PackLayout


@contextmanager
def changed(pairs):
    """Set tensors to other values within the block. `pairs`: a tensor and its new value."""
    pairs = [(tensor, tensor.detach().clone(), value) for tensor, value in pairs]
    with torch.no_grad():
        for tensor, _, value in pairs:
            tensor.copy_(value)
        try:
            yield
        finally:
            for tensor, old, _ in pairs:
                tensor.copy_(old)


def layers(policy):
    return list(policy.model.base_model.layers)


def theta(factor):
    def mutation(policy):
        rotary = policy.model.base_model.rotary_emb
        exponent = torch.arange(len(rotary.inv_freq), device=policy.device) / len(rotary.inv_freq)
        return changed([(rotary.inv_freq, rotary.inv_freq * float(factor) ** -exponent)])

    return mutation


def swapped_heads(count):
    def mutation(policy):
        pairs = []
        for layer in layers(policy)[-count:]:
            weight, width = layer.self_attn.q_proj.weight, layer.self_attn.head_dim
            order = torch.arange(len(weight), device=policy.device).view(-1, width)
            order[[0, 1]] = order[[1, 0]]
            pairs.append((weight, weight.detach()[order.flatten()]))
        return changed(pairs)

    return mutation


def without_bias(*names):
    def mutation(policy):
        biases = [getattr(layer.self_attn, name).bias for layer in layers(policy) for name in names]
        return changed([(bias, torch.zeros_like(bias)) for bias in biases])

    return mutation


@contextmanager
def without_head_norms(policy):
    """The engine's layers compute queries and keys without their norms."""
    rows = architectures.ARCHITECTURES
    architectures.ARCHITECTURES = tuple(replace(row, head_norms=False) for row in rows)
    try:
        yield
    finally:
        architectures.ARCHITECTURES = rows


def without_head_norm_weights(policy):
    norms = [getattr(layer.self_attn, name) for layer in layers(policy) for name in ("q_norm", "k_norm")]
    return changed([(norm.weight, torch.ones_like(norm.weight)) for norm in norms])


def other_scaling(**settings):
    """Rotary frequencies for other settings of the scaling than the model's; `rope_type="default"`: unscaled ones."""

    def mutation(policy):
        rotary, config = policy.model.base_model.rotary_emb, copy.deepcopy(policy.model.config)
        config.rope_parameters = {**config.rope_parameters, **settings}
        other = type(rotary)(config).to(policy.device)
        return changed([(rotary.inv_freq, other.inv_freq)])

    return mutation


def regrouped_heads(policy):
    """Query heads take turns at the key heads, instead of neighbours sharing one."""
    pairs = []
    for layer in layers(policy):
        attention = layer.self_attn
        query, out, width = attention.q_proj, attention.o_proj.weight, attention.head_dim
        place = torch.arange(len(query.weight), device=policy.device).view(-1, attention.num_key_value_groups, width)
        place = place.transpose(0, 1).flatten()
        pairs += [(query.weight, query.weight.detach()[place]), (out, out.detach()[:, place])]
        if query.bias is not None:
            pairs.append((query.bias, query.bias.detach()[place]))
    return changed(pairs)


def larger_norm_weight(policy):
    """The weight is an offset from 1 in some families."""
    return changed([(layer.input_layernorm.weight, layer.input_layernorm.weight + 1) for layer in layers(policy)])


def norm_eps(factor):
    @contextmanager
    def mutation(policy):
        config, old = policy.model.config, policy.model.config.rms_norm_eps
        norms = [module for module in policy.model.modules() if hasattr(module, "variance_epsilon")]
        for place, value in [(norm, old * factor) for norm in norms]:
            place.variance_epsilon = value
        config.rms_norm_eps = old * factor
        try:
            yield
        finally:
            config.rms_norm_eps = old
            for norm in norms:
                norm.variance_epsilon = old

    return mutation


@contextmanager
def shifted_positions(policy):
    """Responses start one position too late, in packs and in caches."""
    hidden, open_slots = policy.hidden, policy.open_slots

    def shifted_hidden(pack, cache=None):
        position_N = pack.position_N.clone()
        for group in pack.layout.groups:
            position_N[group.responses_start : group.end] += 1
        return hidden(replace(pack, position_N=position_N), cache)

    def shifted_slots():
        slots = open_slots()
        spread = slots.spread

        def late(*words, **options):
            spread(*words, **options)
            slots.position_R = slots.position_R + 1

        slots.spread = late
        return slots

    policy.hidden, policy.open_slots = shifted_hidden, shifted_slots
    try:
        yield
    finally:
        del policy.hidden, policy.open_slots


@contextmanager
def leaking_mask(policy):
    """Later responses of a group attend to its first one. A cache has no such mask."""
    hidden = policy.hidden

    def leaking(pack, cache=None):
        (group,) = pack.layout.groups
        if group.lengths:
            first, *rest = group.lengths
            wrong = GroupLayout(group.start, group.prompt_length + first, tuple(rest))
            pack = replace(pack, layout=PackLayout((wrong,), pack.layout.device))
        return hidden(pack, cache)

    policy.hidden = leaking
    try:
        yield
    finally:
        del policy.hidden


MUTATIONS = {
    "rope theta / 10": theta(0.1),
    "rope theta * 1.5": theta(1.5),
    "shifted positions": shifted_positions,
    "leaking mask": leaking_mask,
    "no query and key bias": without_bias("q_proj", "k_proj"),
    "no value bias": without_bias("v_proj"),
    "no query and key norm": without_head_norms,
    "query and key norm without weights": without_head_norm_weights,
    "rope unscaled": other_scaling(rope_type="default"),
    "rope scaled by another factor": other_scaling(factor=8.0),
    "heads swapped in every layer": swapped_heads(10**6),
    "heads swapped in one layer": swapped_heads(1),
    "heads grouped otherwise": regrouped_heads,
    "norm weight + 1": larger_norm_weight,
    "norm eps * 10": norm_eps(10.0),
    "norm eps / 10": norm_eps(0.1),
}
CACHE_SEES = set(MUTATIONS) - {"leaking mask"}


def mutations_of(policy):
    """Return the mutations that make sense for the model."""
    attention, config = layers(policy)[0].self_attn, policy.model.config
    left_out = []
    if attention.q_proj.bias is None:
        left_out.append("bias")
    if getattr(attention, "q_norm", None) is None or policy.path == "transformers":
        left_out.append("query and key norm")
    if getattr(policy.model.base_model.rotary_emb, "rope_type", "default") != "llama3":
        left_out += ["rope unscaled", "rope scaled"]
    if not 1 < attention.num_key_value_groups < config.num_attention_heads:
        left_out.append("grouped")
    return {name: mutation for name, mutation in MUTATIONS.items() if not any(part in name for part in left_out)}
