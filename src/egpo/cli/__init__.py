"""The command line. One file per verb: its options and help, and the tables that it prints.

`main` is the app and the handling of errors: InputError ends with exit code 2, other failures with 1. A verb imports
what it needs inside its function, so that `egpo --help` stays fast and loads neither torch nor transformers.

- Experiments: `run`, `demo`. Training: `probe`, `plan`, `train`, `sft`. Data: `prepare`, `convert`. Recipes: `recipes`
  (and `egpo new`), `config`.
- Results: `merge`, `serve`, `eval`, `eval_bfcl`, `report`, `compare`, `results`. Checks: `doctor`, `audit`.
- `words`: completion of recipes and settings, advice for unknown options, the first line of a verb.
- `tables` (safe for text that a model wrote), `eval_tables`, `probe_tables`, `audit_tables`, `progress` (on stderr).

To add a verb: write a function with an example in its docstring in a file of its own, and register it in `main`.
"""
