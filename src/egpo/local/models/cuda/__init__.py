"""Fused layers for training on one GPU."""
