"""verl on a CPU: the real trainer, vLLM, FSDP2 and Ray, small, for debugging before GPUs are rented. docs/verl.md.

Nothing is imported here, so that `egpo.verl.cpu.settings` is at hand without torch and verl.
"""
