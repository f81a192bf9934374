"""Experiments (`egpo run`): from recipes to trained, evaluated and compared runs.

Input: recipes. Output: prepared data, run folders with checkpoints, evaluations and `stages.json`, and reports.

- `validate` loads recipes and checks them for all stages; `experiment` is one recipe with its folders.
- `stages` is the table of stages, in their order. The pipeline, `--only`, `--from`, the dry run and the help read it.
- `plan_text` describes what would be done, for the dry run. It imports no torch.
- `pipeline` runs the stages of each recipe, reuses results of other runs, and compares the runs at the end.
- `parallel` runs several recipes at the same time, each in its own process.
- `stage_jobs` has the jobs of each stage; `evaluations` and `bfcl` those of `eval`; `exams` lists the evaluations.
- `stage_record` decides which jobs are skipped (`stages.json`); `screen` prints messages and progress bars.
- `kept` says which results are missing, and removes checkpoints that are not to be kept (`--keep`).
- `new_recipe` writes a recipe that includes another one (`egpo new`).

To add a stage: write its `jobs` and `plan` functions, and add a row to `STAGES` in `stages`.
"""
