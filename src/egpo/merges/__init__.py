"""Checkpoints in, models out: verl's shards and our own, as transformers and vLLM load them."""
