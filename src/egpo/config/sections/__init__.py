"""The classes of the sections of a recipe.

    training.py     task, segments, model, rollout, update, checkpoints, validation, watch
    algorithm.py    algorithm: what all estimators share; the settings of each come from `advantages.ESTIMATORS`
    experiment.py   prepare, probe and eval (stages of `egpo run`), and verl

To add a setting, add a field with a docstring, which becomes its help text, to the section's class. Runs from before
the setting existed resume with its default.
"""
