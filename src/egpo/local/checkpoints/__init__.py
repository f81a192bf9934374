"""Checkpoints of the embedded engine: written completely or not at all, and verified when read.

A run enters as a `Snapshot` plus the model; a folder `global_step_N` leaves, from which the run continues exactly.

    checkpoint.py   the folder: save, choose, read, remove; which checkpoints are kept
    background.py   writes it while training goes on, from a copy in the host's memory
    tensor_files.py writes large tensors; size and digest of every file: `runs/checkpoint_manifest.py`
    resume.py       from a run to a snapshot and back: optimizer, adapters, stream position, random generators

To add a field: write it in `snapshot` and read it in `restore` (`resume.py`), with a default for older checkpoints; for
SFT, in `snapshot` and `restore_snapshot` of `sft/session.py`.
"""
