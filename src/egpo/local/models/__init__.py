"""The model: a folder is loaded as a `Policy`, which computes hidden states of packs, or of one more token per row.

In the order in which data passes through:

    loading.py         a model folder becomes a Policy
    self_check.py      the Policy's logits against transformers' own on real text, both against exact_forward.py;
                       verdicts.py keeps the result for the same weights, code and device
    policy.py          Policy: hidden states of a pack, one more token per row, logits; prompts of problems as tokens
    packs.py           sequences side by side in one forward pass; a prompt once for all its responses
    architectures.py   the table of models that the engine's own layers compute; to add one, see there
    cpu_decoder.py     those layers on a CPU, made of cpu_operations.py, or of one C kernel for one token per row
    cuda/packed.py     those layers on a GPU, made of the Triton kernels in cuda/kernels
    attention.py       attention for every other model, called from transformers' layers
    caches.py          key-value caches for sampling
    lora.py            adapters beside frozen weights

Imports nothing of sampling, updates or training.
"""
