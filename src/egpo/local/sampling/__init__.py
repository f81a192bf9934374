"""Sampling: from a policy and problems to `Rollouts`, with log-probability and exact entropy of every token.

    sample.py     `sample`: prompts once, then one token per row until all rows have ended; splits rows between cores
    choose.py     from logits to a token, its log-probability and the entropy; stop tokens and strings; result tables
    episode_rows.py     episodes of tasks with an environment: how a row continues after a turn
    sample_episodes.py  `sample_episodes`: turns and what the environment says between them, as one sequence or by turn
    prompt_lengths.py   lengths of prompts before anything is sampled; an environment is started for its part of them
    alternatives.py  the likeliest tokens at positions of high entropy, for the report (`rollout.alternatives`)
    cuda/         the same on a GPU by captured graphs, for models with the engine's own layers

A policy's CUDA decoder is created and owned by `sample.cuda_decoder`. This package imports `local/models`, and nothing
of updates or training. To add a truncation rule, add a field to `choose.Sampling`, and implement it in
`choose.kept_tokens` and `cuda/kernels/truncate.py`.
"""
