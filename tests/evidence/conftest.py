"""Real runs of egpo-tiny, made once: a cold start, three estimators with two seeds, and one run of other data."""

import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from egpo.experiments.pipeline import run_each
from egpo.experiments.screen import plain_screen
from egpo.experiments.stages import Selection
from egpo.experiments.validate import load_experiments
from website.evidence.__main__ import BEGIN, BOARD_BEGIN, END
from website.evidence.engines import COMPARISONS
from website.evidence.sittings import append_sitting, sitting_of
from website.evidence.stripping import pack, strip_runs, unpack

RECIPE = """
name: {name}
steps: 2
runs: {folder}/runs
model: {{path: egpo-tiny, device: cpu}}
task:
  name: countdown
  settings: {{mode: binary, max_numbers: 3, max_number: 12, max_target: 60, train: {train}, test: 20,
    prompt_format: "Make {{target}} from {{numbers}}."}}
cold_start: {{problems: 8, thinking: true}}
rollout: {{prompts: 2, n: 2, max_response_tokens: 64}}
update: {{lr: 1e-3}}
checkpoints: {{every: 0}}
validation: {{every: 1, problems: 4}}
eval: {{n: 2}}
algorithm: {{estimator: {estimator}}}
"""
STAGES = ["prepare", "cold_start", "train", "eval"]
COMMIT = "0" * 40


def run_recipe(folder, name, estimator, seeds, train=12):
    path = folder / f"{name}.yaml"
    path.write_text(RECIPE.format(folder=folder, name=name, estimator=estimator, train=train))
    experiments = load_experiments([str(path)], seeds=seeds)
    run_each(experiments, Selection.of(STAGES), plain_screen(lambda text: None))


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The folder with `runs`, and `other/runs` with the run of other data."""
    folder = tmp_path_factory.mktemp("evidence")
    with chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *args, **kwargs: None)  # two steps are too few for the health rules
        for estimator in ("grpo", "egpo", "egpo_calibrated"):
            run_recipe(folder, f"mini_{estimator}", estimator, [0, 1])
        (folder / "other").mkdir()
        with chdir(folder / "other"):
            run_recipe(folder / "other", "mini_other", "grpo", [2], train=13)
    return folder


def write_empty_pages(docs: Path):
    """Write the pages with generated parts, which are still empty."""
    (docs / "images").mkdir(parents=True)
    (docs / "results.md").write_text(f"# Results\n\n{BEGIN}{END}\nThe rest.\n")
    (docs / "board.md").write_text(f"# Boards\n\n## Results\n\n{BOARD_BEGIN}{END}\nThe rest.\n")
    (docs / "verl.md").write_text("".join(f"# verl\n\n{one.begin}{END}\nThe rest.\n" for one in COMPARISONS))


@pytest.fixture
def docs(made, tmp_path):
    """A folder like docs/ whose evidence are these runs, with its page and figures not yet written."""
    folder = tmp_path / "docs"
    write_empty_pages(folder)
    pack(strip_runs(made / "runs").files, tmp_path / "runs.tar.gz")
    names = unpack(tmp_path / "runs.tar.gz", folder / "evidence")
    append_sitting(folder / "evidence", sitting_of(folder / "evidence", names, COMMIT, 2, 60))
    yield folder
    shutil.rmtree(folder)
