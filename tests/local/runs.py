"""Whole runs of the real command, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.local.device import MODEL

REPOSITORY = Path(__file__).parents[2]
RECIPE = """
name: tiny
steps: 8
model: {{path: {model}, {device}}}
task: {{name: "tests.local.run_tasks:Sparse"}}
rollout: {{prompts: 2, n: 3, max_response_tokens: 6}}
algorithm: {{estimator: egpo, egpo: {{entropy_mode: response}}}}
update: {{lr: 1e-3, schedule: linear, warmup_steps: 2, micro_tokens: 256, epochs: 2, mini_batch: 1}}
checkpoints: {{every: 2, keep_last: 2, keep_best: 1}}
validation: {{every: 3, problems: 3}}
watch: {{rollouts_every: 2}}
"""


def write_recipe(path, model):
    path.write_text(RECIPE.format(model=model, device=", ".join(f"{name}: {value}" for name, value in MODEL.items())))
    return path


def start(*words, cwd, **options):
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CI": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "egpo", "train", *map(str, words)]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


class Finished:
    """How a process ended and what it said."""

    def __init__(self, process):
        self.out, self.err = process.communicate(timeout=240)
        self.code = process.returncode


def run(*words, cwd, **options):
    return Finished(start(*words, cwd=cwd, **options))


def contents(folder, *, but=()):
    """Every file of a run that must be the same for the same run, by its place."""
    names = {"timings.jsonl", "provenance.json", "config.yaml", ".lock", *but}
    paths = [path for path in sorted(Path(folder).rglob("*")) if path.is_file() and path.name not in names]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def differing(one, other):
    """Names of the files that are not the same in both: a diff of their bytes would take minutes."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
