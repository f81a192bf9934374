"""verl as the second engine, without a fork: a plug-in inside verl's processes, and a launcher for recipes.

Plug-in. Enters: verl's batch. Leaves: advantages, metrics, dumps of responses. In the order of a step:

- `plugin.py`: verl imports it in every process; it registers the rest when verl imports the modules concerned
- `settings.py`, `plugin_checks.py`: read verl's configuration, and refuse what would lack entropy
- `overrides.py`, `imports.py`: accept our keys on verl's command line; run code after a module is imported
- `trainers.py`: verl's trainers with our steps; `rows.py`: the batch; `measures.py`: entropy per segment, metrics
- `estimators.py`: our estimators as verl calls them; `dumps.py`: responses and batches on disk
- `reward.py`, `hybrid_manager.py`: our rewards as verl calls them

`launch/`: `egpo train RECIPE engine=verl`. `cpu/`: verl on a CPU. No module needs verl before verl imports it.
"""
