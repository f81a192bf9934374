"""A whole training run, from loading to the last checkpoint.

A config enters; a run folder with metrics and checkpoints leaves. `train.py` and `sft/session.py` call `complete`:

    session.py      what both kinds of run share: opening, the loop over steps, metrics, checkpoints
    rl_session.py   an RL run: what is loaded, what happens after each step, the rollouts that are written
    preflight.py    checks before the first step: tags, prompt lengths, disk space
    interrupts.py   signals: abandon the step or finish the update, then save
    dry_run.py      `egpo train --dry-run`: two small steps, nothing kept

The order of operations when a run opens is in `egpo.runs.opening`.
"""
