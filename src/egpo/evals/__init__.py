"""Evaluates models on tasks: accuracy, pass@k, score, entropy and length with 95 % intervals, and paired comparisons.

Input: model folders, runs or a server, and a task. Output: `evals/<name>.json` (figures: the computed accuracy, pass@k
and so on) and `evals/<name>.jsonl` (responses).

- `targets.py`: finds the models that a command names, and where their evaluations are written
- `evaluate.py`: `Exam` -> `load_exam` -> `evaluate` -> `write_evaluation`; read this first
- `local_model.py`: samples a model loaded into this process; `server.py` and `server_requests.py`: a served model;
  `server_episodes.py`: its episodes
- `responses.py`: sampling settings, responses, and their stored records. To add a sampling setting: `Sampling` there,
  `local_model._rollout`, `server_requests.sent_settings`, the option in `cli/eval.py`, and `Eval` in
  `config/sections/experiment.py`
- `figures.py`: figures from judged responses; `intervals.py`: bootstrap intervals and pass@k
- `paired.py`: compares two models problem by problem
- `bfcl/`: the Berkeley function-calling leaderboard, by its official evaluator
"""
