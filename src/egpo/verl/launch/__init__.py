"""`egpo train RECIPE engine=verl`: a recipe becomes verl's command, and verl's run becomes a run folder of ours.

Input: a recipe. Output: a run folder with metrics, rollouts and checkpoints. In the order of a launch:

- `train.py`: the launch from start to end; read this first. `dry_run.py`: prints the command and starts nothing
- `refusals.py`: refuses what verl cannot do; `preflight.py`: checks interpreter, GPUs, context, ports
- `opening.py`: opens or resumes the run folder; `layout.py`: verl's files in it; `problems.py`: its data files
- `translation.py`: recipe -> verl's settings; `hosts.py`: those that follow from the machine, such as few cores
- `hydra_overrides.py`: how settings are written; `command.py`: the command
- `processes.py`: starts and ends verl's processes; `watch.py`: follows verl until it ends
- `mirror.py`: copies verl's metrics, rollouts and checkpoints into the run folder
- `task_reward.py`: a custom task as verl's reward; `schema/`: the keys that verl reads
- `override_files.py`, `shell_script.py`, `recipe_sections.py`, `recipe_import.py`: verl's settings -> recipe
"""
