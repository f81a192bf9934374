"""Memory and time of one training step, estimated before training (`egpo plan`), without torch.

In: a recipe's `Config`, the `config.json` of its model and the name of a GPU. Out: a `StepPlan` for one GPU and the
embedded engine, or a `ClusterPlan` for many GPUs and verl.

shapes.py           the inputs: `CARDS` (GPUs), `ModelShape` (dimensions of a decoder), `StepJob` (the work of a step)
step_plan.py        bytes by part, seconds by stage, whether the step fits, and the longest response that fits
cluster_plan.py     the same for verl on many GPUs: memory, and the best split and `fsdp_size`
cluster_seconds.py  its seconds by stage
links.py            its assumptions, and the seconds of collectives between GPUs
splits.py           how vLLM and FSDP2 can divide the GPUs and rows

To add a GPU: one row of `CARDS` in shapes.py, and of `LINKS` in links.py.
"""
