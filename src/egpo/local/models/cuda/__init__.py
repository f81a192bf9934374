"""The engine's own layers on one GPU: `packed` computes a pack with gradients, from the Triton kernels in `kernels`."""
