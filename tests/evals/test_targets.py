"""What MODEL means."""

import json
from pathlib import Path

import pytest

from egpo.errors import InputError
from egpo.evals.evaluate import Exam
from egpo.evals.responses import Sampling
from egpo.evals.server import Server
from egpo.evals.targets import find_model, local_targets, served_targets

RECIPE = "name: first\nmodel: {path: base}\ntask: {name: countdown, settings: {max_numbers: 3}}\n"


@pytest.fixture
def run(tmp_path):
    """A run with three checkpoints, of which the second has the best score."""
    path = tmp_path / "runs" / "first"
    for step, score in {2: 0.1, 4: 0.5, 10: 0.3}.items():
        actor = path / "checkpoints" / f"global_step_{step}" / "actor"
        (actor / "huggingface").mkdir(parents=True)
        (actor / "huggingface" / "config.json").write_text("{}")
        manifest = {"step": step, "identity": "", "score": score, "files": {}, "format": 1}
        (actor / "manifest.json").write_text(json.dumps(manifest))
    (path / "config.yaml").write_text(RECIPE)
    return path


def test_a_run_is_its_latest_or_best_checkpoint_or_that_of_a_step(run):
    assert [find_model(str(run), which).step for which in ("latest", "best", "2")] == [10, 4, 2]
    place = find_model(str(run))
    assert place.label == "first step 10"
    assert place.model == str(run / "checkpoints/global_step_10/actor/huggingface")
    assert place.recipe.task.settings == {"max_numbers": 3}
    with pytest.raises(InputError, match="no checkpoint `3`; choose one of: latest, best, 2, 4, 10"):
        find_model(str(run), "3")


@pytest.mark.parametrize("inside", ["", "actor", "actor/huggingface"])
def test_a_checkpoint_knows_its_run(run, inside):
    place = find_model(str(run / "checkpoints" / "global_step_4" / inside))
    assert (place.step, place.run.path) == (4, run)


def test_a_run_without_checkpoints_or_scores(run, tmp_path):
    for path in run.glob("checkpoints/*/actor/manifest.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"score": None}))
    with pytest.raises(InputError, match="no checkpoint of the run has a validation score"):
        find_model(str(run), "best")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.yaml").write_text(RECIPE)
    with pytest.raises(InputError, match="no checkpoint yet"):
        find_model(str(tmp_path / "new"))


def test_anything_else_is_a_model(tmp_path):
    (tmp_path / "base").mkdir()
    assert find_model(str(tmp_path / "base")).label == "base"
    assert find_model("Qwen/Qwen3-4B").model == "Qwen/Qwen3-4B"
    assert find_model("Qwen/Qwen3-4B").recipe is None


def test_evaluations_lie_with_their_run_or_where_they_are_wanted(run, tmp_path):
    (tmp_path / "base").mkdir()
    words = [str(tmp_path / "base"), str(run)]
    base, trained = local_targets(words)
    exam = Exam("countdown", sampling=Sampling(n=4, temperature=0.7))
    assert (base.folder, base.file_name(exam)) == (run / "evals", "base-countdown-n4-t0.7")
    assert (trained.folder, trained.file_name(exam)) == (run / "evals", "countdown-n4-t0.7-step10")
    few = Exam("countdown", num_problems=8, sampling=Sampling(n=4, temperature=0.7))
    assert trained.file_name(few) == "countdown-first8-n4-t0.7-step10", "a trial does not replace the whole"
    assert base.recipe == trained.recipe
    _, elsewhere = local_targets(words, out=tmp_path)
    assert (elsewhere.folder, elsewhere.file_name(exam)) == (tmp_path, "first_step_10-countdown-n4-t0.7")


def test_a_base_model_s_evaluation_lies_with_the_run_it_is_evaluated_with(run, tmp_path):
    """The report of the run reads it there, and can then say what the training has changed."""
    base, trained = local_targets(["egpo-tiny", str(run)])
    assert base.folder == trained.folder == run / "evals"
    exam = Exam("countdown", sampling=Sampling())
    assert base.file_name(exam) != trained.file_name(exam)
    assert local_targets(["egpo-tiny", str(run)], out=tmp_path)[0].folder == tmp_path
    assert local_targets(["egpo-tiny"])[0].folder == Path("evals")


def test_models_of_one_name_are_told_apart(tmp_path):
    for parent in ("a", "b"):
        (tmp_path / parent / "model").mkdir(parents=True)
    words = [str(tmp_path / parent / "model") for parent in ("a", "b")]
    assert [candidate.place.label for candidate in local_targets(words)] == words


def test_a_checkpoint_in_shards_is_to_be_merged_first_and_then_is_the_run_s_model(run):
    (run / "checkpoints/global_step_10/actor/model_world_size_2_rank_0.pt").touch()
    with pytest.raises(
        InputError, match=f"in shards; merge it into a model first: egpo merge {run} --step 10 --out "
    ) as told:
        find_model(str(run))
    merged = Path(str(told.value).rpartition(" ")[2])
    merged.mkdir(parents=True)
    (merged / "config.json").write_text("{}")
    place = find_model(str(run))
    assert (place.model, place.label, place.run.path, place.step) == (str(merged), "first step 10", run, 10)


def test_a_served_model_and_a_local_one_of_its_name_have_files_of_their_own(tmp_path):
    (tmp_path / "base").mkdir()
    (local,) = local_targets([str(tmp_path / "base")])
    (served,) = served_targets(Server.at("http://localhost:8000"), ["base"])
    exam = Exam("countdown", sampling=Sampling(n=4, temperature=0.7))
    assert served.file_name(exam) == "base-served-countdown-n4-t0.7"
    assert served.file_name(exam) != local.file_name(exam)
