"""The command line. Each verb (`egpo train`, `egpo eval`, ...) has a file with its options, its help and its output.

`main` assembles the verbs and handles errors: an InputError ends with exit code 2, other failures with 1. A verb
imports what it needs inside its function, so that `egpo --help` is fast and loads neither torch nor transformers.

- Experiments: `run`, `board`, `demo`. Training: `probe`, `plan`, `train`, `sft`. Data: `prepare`, `convert`.
- Recipes: `recipes` (and `egpo new`), `config`. Checks: `doctor`, `audit`.
- Results: `merge`, `push`, `serve`, `eval`, `eval_bfcl`, `report`, `compare`, `results`.
- `stops`: signals, for every verb.
- `words`: completion of recipes and settings, advice for unknown options, the first line of a verb.
- Output: `tables` (safe for text that a model wrote), `eval_tables`, `probe_tables`, `audit_tables`; `progress` bars;
  `silence`: a line when a verb has printed nothing for some seconds.

To add a verb: write a function with an example in its docstring in a file of its own, and register it in `main`.
"""
