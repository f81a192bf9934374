"""Turn a checkpoint into a model folder that transformers and vLLM load, and verify that it is the same model.

Enters: a run, or a checkpoint of verl (shards) or of the embedded engine (a whole model). Leaves: a model folder.

`places`   finds the checkpoint and its shards, without torch
`shards`   puts the tensors of all ranks together, folds adapters in, builds the model
`models`   loads and builds models, checks that every weight has its place; LoRA
`output`   fingerprints of a model, and a folder that is replaced only when complete
`merge`    all of the above in order: `merge`
"""
