"""Triton kernels of the fused layers."""
