"""The embedded engine: samples and trains a transformers model in one process, with one set of weights.

A config and a task enter; a run folder with metrics and checkpoints leaves. `step.py` is the page to read first. One
step passes through `run.py` (the state of a run), `collect.py` (sample and judge), `measure.py` (entropy per segment,
advantages), `updates/`, `summarise.py` (metrics). `train.py` is the entry point; `validate.py` measures the policy on
held-out problems.

A module imports only modules further down in this list (checked by `tests/test_architecture.py`):
    training/, sft/    a whole run, from loading to the last checkpoint: RL, and supervised fine-tuning
    checkpoints/       complete checkpoints and how a run continues from one
    step.py and the files that it calls
    updates/           losses, gradients, optimizer, the KL reference
    sampling/          responses with log-probability and entropy per token
    rollouts.py, threads.py
    models/            loading, packed forward passes, caches, CPU and CUDA kernels
    draws.py, memory.py, progress_bars.py
"""
