"""Triton kernels of a layer, with gradients.

`elementwise`: residual sum with RMS norm, SwiGLU. `heads`: joint projection to rotated heads. `varlen`: copies of
prompts' keys for variable-length attention.
"""
