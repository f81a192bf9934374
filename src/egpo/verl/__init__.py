"""verl as the second engine, unmodified: a plug-in that runs inside verl's processes, and a launcher for recipes.

Plug-in. Input: verl's batch. Output: advantages, metrics, dumps of responses. In the order of a step:

- `plugin.py`: verl imports it in every process; it registers the rest when verl imports the modules concerned
- `settings.py`, `plugin_checks.py`: read verl's configuration, and refuse settings under which entropy is missing
- `verl_names.py`: the names of verl that all of this uses, checked on a version that was not run
- `overrides.py`, `imports.py`: accept our keys on verl's command line; run code after a module is imported
- `trainers.py`: verl's trainers with our steps; `rows.py`: the batch; `measures.py`: entropy per segment, metrics
- `estimators.py`, `losses.py`: our estimators and loss forms as verl calls them, and which ones verl has itself
- `packed_attention.py`: attention for batches without padding, where flash-attn is not installed
- `control.py`: the weight of the entropy term, step by step; `dumps.py`: responses and batches on disk
- `reward.py`, `hybrid_manager.py`: our rewards as verl calls them; `validation.py`: metrics without failed responses
- `agent_loop.py`: the agent loop `egpo` plays episodes of environments; `episode_player.py`: the same without verl

`launch/`: `egpo train RECIPE engine=verl`. `cpu/`: verl on a CPU. Modules that import verl are loaded only after verl.
"""
