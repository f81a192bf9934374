"""Turn a checkpoint into a model folder that transformers and vLLM load, and verify that it is the same model.

Input: a run, or a checkpoint of verl (shards) or of the embedded engine (a whole model). Output: a model folder.

`places`   finds the checkpoint and its shards, without torch
`shards`   joins the tensors of all ranks, merges LoRA adapters into them, and builds the model
`models`   loads and builds models, checks that no weight is missing or left over, and merges LoRA adapters
`output`   computes fingerprints of a model, and replaces a folder only when the new one is complete
`merge`    does all of this in order (`egpo merge`)
"""
