"""The common decoder shapes on a GPU: fused layers for training, captured graphs for sampling."""
