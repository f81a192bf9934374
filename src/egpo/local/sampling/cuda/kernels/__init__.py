"""Triton kernels of one token per row: `attention` over prompt and own tokens, `truncate` logits, `draw_tokens`."""
