"""The demo (`egpo demo`): the tiny model of the package, trained with every estimator and compared, in minutes.

Enter: a folder and a size. Leave: the data, a run for each estimator, the probe, and one report of all.

- `countdown.yaml` is the recipe; `demo` makes one experiment of it per estimator and runs them as `egpo run` does.
- `forecast` compares the probe's forecast of informative groups with the first training steps.
- `findings` compares the evaluations: estimators with the base, and with each other.
"""
