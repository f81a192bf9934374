"""Triton kernels, each beside the function that calls it. All sums are in float32, whatever the tensors hold."""
