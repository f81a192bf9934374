"""verl on a CPU: the real trainer, vLLM, FSDP2 and Ray with a tiny model, to debug a run before renting GPUs.

Enters: `verl.device=cpu` in a recipe, or `launch_settings.py` on verl's own command line. Leaves: a verl that trains.

- `launch_settings.py`: environment variables and overrides that verl, vLLM and Ray need on a CPU
- `register.py`: imported by every process of verl; applies what follows
- `platform.py`: the CPU as a platform of verl; `device_module.py`: its replacement for `torch.cuda`
- `patches.py`: the table of patches of verl and vLLM, with the reason for each

Nothing is imported here, so that `launch_settings` needs neither torch nor verl. See docs/verl.md.
"""
