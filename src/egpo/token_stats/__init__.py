"""Log-probability and exact entropy of tokens from hidden states, without the full logits in memory.

In: hidden states, the weight of the language-model head, target tokens. Out: logp (differentiable) and entropy.

chunked.py   `token_stats`: processes the vocabulary in slices, forward and backward; torch or C kernels per slice
kernels.py   Triton kernels of one slice, for GPUs
"""

from egpo.token_stats.chunked import token_stats

__all__ = ["token_stats"]
