"""The sections of a recipe.

    training.py     task, segments, model, rollout, update, checkpoints, validation, watch
    algorithm.py    advantage estimators and their settings
    experiment.py   prepare, probe and eval of `egpo run`; verl

To add a setting, add a field with a docstring, which becomes its help text, to the section's class.
"""
