"""Triton kernels for sampling one token per row."""
