"""Evaluation of a checkpoint or served model on BFCL, the Berkeley Function-Calling Leaderboard, by its own evaluator.

Input: a model or a server's address, and categories. Output: an evaluation in the same format as those of `egpo eval`,
and BFCL's own files. A pass is one run over all chosen cases. Each case is stored as a problem, and the answer of each
pass to it as a sample.

BFCL's own Python environment is found, or created, by `egpo.environments.bfcl.interpreter`.

- `categories.py`: names of categories and collections
- `targets.py`: finds the model, and starts or finds the server that serves it
- `passes.py`: one pass of BFCL in bubblewrap; `inside/` is the code that runs there, without egpo
- `verdicts.py`: BFCL's files -> verdicts -> figures
- `evaluate_bfcl.py`: runs these steps in order, and compares BFCL's prompt with the training prompt; read this first
"""
