"""Which files are the same exam sat again."""

from pathlib import Path

import pytest

from egpo.evals.evaluate import Exam
from egpo.evals.responses import Sampling
from egpo.evals.targets import LocalTarget, ModelPlace
from egpo.runs.folder import RunFolder
from egpo.runs.stored import EvaluationFile


@pytest.mark.parametrize(
    ("name", "exam"),
    [
        ("countdown-n8-t1-step40", "countdown-n8-t1"),
        ("countdown-n8-t1-seed3-step40", "countdown-n8-t1"),
        ("bfcl-multi_turn_base-run2", "bfcl-multi_turn_base"),
        ("countdown-greedy", "countdown-greedy"),
        ("step40", "step40"),
    ],
)
def test_steps_seeds_and_runs_do_not_make_another_exam(name, exam):
    assert EvaluationFile(Path(f"{name}.json"), {}).exam == exam


def test_a_model_that_is_evaluated_again_overwrites_nothing_and_sits_the_same_exam(tmp_path):
    candidate = LocalTarget(ModelPlace("model", "run step 40", RunFolder(tmp_path), 40), None, None, "cpu")
    names = [candidate.file_name(Exam("countdown", sampling=Sampling(seed=seed))) for seed in (0, 1, 2)]
    assert len(set(names)) == 3
    assert {EvaluationFile(Path(f"{name}.json"), {}).exam for name in names} == {"countdown-n8-t1"}
