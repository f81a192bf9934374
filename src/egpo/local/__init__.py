"""The embedded engine: a transformers model, sampled and trained in one process with the same weights."""
