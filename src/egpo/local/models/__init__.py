"""The model as the engine computes it: loading, packs for training, caches for sampling, kernels for CPU and GPU."""
