"""verl on a CPU: the real trainer, vLLM, FSDP2 and Ray with a tiny model, to debug a run before renting GPUs.

Input: `verl.device=cpu` in a recipe, or the settings of `launch_settings.py` in a verl command. Output: a training.

- `launch_settings.py`: environment variables and overrides that verl, vLLM and Ray need on a CPU
- `register.py`: imported by every process of verl; registers the platform and the patches
- `platform.py`: the CPU as a platform of verl; `device_module.py`: its replacement for `torch.cuda`
- `patches.py`: the table of patches of verl and vLLM, with the reason for each

This file imports nothing, so that `launch_settings` needs neither torch nor verl. See docs/verl.md.
"""
