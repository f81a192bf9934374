"""Memory and time of one training step on one GPU, estimated before training (`egpo plan`), without torch.

In: a recipe's `Config`, the `config.json` of its model and the name of a GPU. Out: a `StepPlan`.

shapes.py      the inputs: `CARDS` (GPUs), `ModelShape` (dimensions of a decoder), `StepJob` (the work of a step)
step_plan.py   bytes by part, seconds by stage, whether the step fits, and the longest response that fits

To add a GPU: one row of `CARDS` in shapes.py.
"""
