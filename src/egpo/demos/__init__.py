"""The demos (`egpo demo`): the package's tiny model with every estimator, or a real model on sums, in minutes.

Input: an output folder and a size. Output: the data, one run per estimator, the probe, and one report of all runs.

- `countdown.yaml` is the recipe; `demo` runs it once per estimator, as `egpo run` does.
- `forecast` compares the probe's forecast of informative groups with the first training steps.
- `sums.yaml` is the recipe of the demo with a real model (`--model`); `sums` runs it, from the rows to the report.
- `findings` compares the evaluations: each estimator with the base model, and the estimators with each other.
"""
