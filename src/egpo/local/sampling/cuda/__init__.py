"""Sampling on one GPU with captured CUDA graphs."""
