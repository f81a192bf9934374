"""The environment `bfcl_multi_turn`: BFCL's multi-turn cases with BFCL's own classes, hosted in BFCL's environment.

    interpreter.py           finds the Python interpreter with `bfcl-eval`, and creates its environment when needed
    cases.py                 the cases, their declared split, gold trajectories, and the record of trained cases
    multi_turn.py            `BfclMultiTurn`: what egpo knows of the environment; its code runs in the workers
    inside/hosted_cases.py   runs there, without egpo: instances of one rollout, calls by name, BFCL's own checker

BFCL's own executor keeps instances in `globals()` by model and case, which siblings of a group would share, and calls
`eval` on the model's text. Here every rollout has its own instances, and a call is looked up by its name.
"""
