"""MODEL or URL: mistakes are found before BFCL's environment is made and a server started."""

from dataclasses import replace

import pytest

from egpo.assets import resolve_model
from egpo.errors import InputError
from egpo.evals.bfcl.evaluate_bfcl import BfclOptions, evaluation_name, prompt_mismatches
from egpo.evals.bfcl.passes import BfclSettings
from egpo.evals.bfcl.targets import BfclTarget, find_target, find_targets
from egpo.evals.targets import ModelPlace
from egpo.runs.folder import RunFolder
from tests.evals.bfcl.gold_server import serving

TINY = resolve_model("egpo-tiny")


def fault(word, name=None, tokenizer="egpo-tiny"):
    with pytest.raises(InputError) as told:
        find_target(word, name, tokenizer, "latest")
    return str(told.value)


def test_a_server_that_is_down_or_no_address():
    assert "does not list its models" in fault("http://127.0.0.1:9/v1")
    assert "does not list its models" in fault("http://127.0.0.1:9/v1", name="m")
    assert "is not an address" in fault("http://a:b")
    assert "a served model needs a tokenizer on this machine" in fault("http://127.0.0.1:9", tokenizer=None)


def test_a_server_of_another_model_names_its_own():
    with serving(lambda prompt: 404) as (url, _):
        assert find_target(url, None, "egpo-tiny", "latest").served_name == "gold"
        message = fault(url, name="silver")
        assert "does not answer for `silver`" in message
        assert "choose a model with --model; the server lists: gold" in message


def test_a_model_that_the_server_answers_for_need_not_be_listed():
    with serving(lambda prompt: "yes") as (url, _):
        assert find_target(url, "silver", "egpo-tiny", "latest").served_name == "silver"


def test_a_checkpoint_of_verl_is_to_be_merged_first(tmp_path):
    run = RunFolder(tmp_path / "run")
    actor = run.checkpoint_of(4) / "actor" / "huggingface"
    actor.mkdir(parents=True)
    run.config.write_text("name: run\n")
    (actor / "config.json").write_text("{}")
    assert "the folder has no weights; convert a checkpoint of verl to a model with `egpo merge`" in fault(
        str(run.path)
    )
    assert "no such folder" in fault(str(tmp_path / "none"))


def test_models_of_one_name_have_files_of_their_own(tmp_path):
    words = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "m").symlink_to(TINY)
        words.append(str(tmp_path / place / "m"))
    targets = find_targets(words, None, None, "latest")
    assert len({evaluation_name(target, BfclSettings("", "", TINY, ("a",)), BfclOptions()) for target in targets}) == 2


def test_a_trial_of_a_few_cases_and_a_served_model_replace_nothing():
    asked = BfclSettings("", "", TINY, ("simple_python",))
    few = BfclSettings("", "", TINY, ("simple_python",), {"simple_python": ["a", "b"]})
    local, served = BfclTarget("m", TINY), BfclTarget("m", TINY, url="http://x/v1")
    assert evaluation_name(local, asked, BfclOptions()) == "bfcl-simple_python-qwen_fc-m"
    assert evaluation_name(local, few, BfclOptions()) == "bfcl-simple_python-qwen_fc-first2-m"
    assert evaluation_name(served, asked, BfclOptions()) == "bfcl-simple_python-qwen_fc-served-m"
    long = replace(asked, max_tokens=16384)
    assert evaluation_name(local, long, BfclOptions()) == "bfcl-simple_python-qwen_fc-max16384-m"
    assert evaluation_name(local, replace(asked, max_tokens=4096), BfclOptions()) == evaluation_name(
        local, asked, BfclOptions()
    )


RUN = """\
name: run
engine: local
seed: 0
steps: 1
model: {path: egpo-tiny}
task: TASK
"""


@pytest.mark.parametrize("task", ["{name: countdown}", "{name: tool_calls, settings: {source: /no/such/data}}"])
def test_a_run_without_tools_or_without_its_data_has_no_prompt_to_compare(tmp_path, task):
    run = RunFolder(tmp_path)
    run.config.write_text(RUN.replace("TASK", task))
    target = BfclTarget("m", TINY, place=ModelPlace(TINY, "m", run, 1))
    if "source" in task:
        with pytest.warns(UserWarning, match="BFCL's prompt cannot be compared with the training prompt"):
            assert prompt_mismatches(target, BfclSettings("", "", TINY, ()), tmp_path, tmp_path) is None
    else:
        assert prompt_mismatches(target, BfclSettings("", "", TINY, ()), tmp_path, tmp_path) is None
