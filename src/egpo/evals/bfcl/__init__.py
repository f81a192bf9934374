"""BFCL, the Berkeley function-calling leaderboard, on any checkpoint or server, by its official evaluator.

Enters: a model or a server's address, and categories. Leaves: an evaluation like any other (case = problem, pass =
sample), and BFCL's own files.

- `categories.py`: names of categories and collections
- `environment.py`: BFCL's own Python environment, created when it is first needed
- `targets.py`: the model, and the server that answers for it
- `passes.py`: one pass of BFCL in bubblewrap; `inside/` is the code that runs there, without egpo
- `verdicts.py`: BFCL's files -> verdicts -> figures
- `evaluate_bfcl.py`: all of it in order, and the comparison of BFCL's prompt with the training prompt; read this first
"""
