"""Triton kernels that sample one token per row: `attention` over prompt and own tokens, `truncate`, `draw_tokens`."""
