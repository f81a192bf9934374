"""The same data lies in the same folder, and verbs that prepare nothing ask for it."""

import json
import random
from pathlib import Path

import pytest

from egpo.config import load_config
from egpo.config.machine import VARIABLE
from egpo.data.conversations import INSTRUCTION
from egpo.errors import EgpoError, InputError
from egpo.experiments.pipeline import run_stages
from egpo.experiments.screen import plain_screen
from egpo.experiments.stages import Selection
from egpo.experiments.validate import load_experiments
from egpo.prepared_data import data_plan, require_prepared_data, with_prepared_data
from egpo.tasks import load_task
from egpo.tasks.function_calling import ConversationLimits, draw_conversation

WORDS = ["model.path=egpo-tiny", "task.name=countdown", "task.settings={train: 12, test: 6}"]


def folder(*overrides):
    return data_plan(load_config(None, [*WORDS, *overrides])).folder


@pytest.mark.parametrize(
    "same", ["seed=3", "name=x", "update.lr=1", "task.settings.mode=binary", "algorithm.estimator=egpo", "eval.n=2"]
)
def test_what_changes_no_row_changes_no_folder(same):
    assert folder(same) == folder()


@pytest.mark.parametrize(
    "other", ["task.settings.train=13", "task.settings.max_number=9", "prepare.test=3", "prepare.seed=1",
              "task={name: gsm8k}", "prepare.source=some/set"]
)  # fmt: skip
def test_what_decides_rows_decides_the_folder(other):
    assert folder(other) != folder()


def test_the_bytes_of_a_source_decide_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = Path("rows.jsonl")
    source.write_text("one\n")
    before = folder("prepare.source=rows.jsonl")
    source.write_text("two\n")
    assert folder("prepare.source=rows.jsonl") != before


def test_prepared_problems_are_those_that_the_task_would_draw(run_recipe, recipe):
    run_recipe(only=["prepare"])
    config = load_config(recipe)
    drawn, stored = (
        load_task("countdown", **settings)
        for settings in (config.task.settings, with_prepared_data(config).task.settings)
    )
    for split in ("train", "test"):
        assert [p.key for p in stored.problems(split)] == [p.key for p in drawn.problems(split)]


def test_a_source_is_prepared_from_the_machines_data(run_recipe, recipe, tmp_path, monkeypatch):
    (tmp_path / "sets").mkdir()
    rows = [json.dumps({"target": 10 + i, "nums": [1, 2, 3 + i]}) for i in range(9)]
    (tmp_path / "sets" / "rows.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "machine.yaml").write_text("data: [sets]\n")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "machine.yaml"))
    words = ["task.settings={}", "prepare={source: rows.jsonl, train: 6, test: 3}"]
    (told,) = [line for line in run_recipe(*words, only=["prepare"]) if "train" in line]
    assert told.endswith("6 train, 3 test")
    config = require_prepared_data(load_config(recipe, words), "recipe.yaml")
    assert len(load_task("countdown", **config.task.settings).problems("test")) == 3


def test_conversations_are_split_as_egpo_convert_splits_them(run_recipe, tmp_path):
    rng = random.Random(0)
    records = [json.dumps(draw_conversation(rng, ConversationLimits(2, 2, 4, True))) for _ in range(60)]
    (tmp_path / "raw.jsonl").write_text("\n".join(records) + "\n")
    convert = "{format: hardgen, max_samples: 40, test_size: 0.1}"
    said = run_recipe(
        "task={name: function_calling}", f"prepare={{source: raw.jsonl, convert: {convert}}}", only=["prepare"]
    )
    assert any("36 train, 4 test" in line for line in said), said


def test_verbs_that_prepare_nothing_say_what_to_do():
    config = load_config(None, [*WORDS, "prepare.source=openai/gsm8k"])
    with pytest.raises(InputError, match=r"`openai/gsm8k` is not prepared yet; egpo run r.yaml --only prepare"):
        require_prepared_data(config, "r.yaml")
    assert require_prepared_data(load_config(None, WORDS), "r.yaml") == load_config(None, WORDS)


def test_a_source_that_is_nowhere_is_named(run_recipe):
    with pytest.raises(EgpoError, match=r"nowhere.jsonl"):
        run_recipe("prepare.source=nowhere.jsonl", only=["prepare"])


@pytest.fixture
def hardgen_prompts(tmp_path, monkeypatch):
    """The system turns of a shipped recipe's training data, converted from a file of conversations or drawn."""
    rng = random.Random(0)
    records = [draw_conversation(rng, ConversationLimits(2, 2, 4, True)) for _ in range(60)]
    (tmp_path / "hardgen.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    monkeypatch.chdir(tmp_path)

    def prompts(recipe, *overrides):
        words = ["prepare.convert.max_samples=40", *overrides]
        (experiment,) = load_experiments([recipe], words)
        run_stages(experiment, Selection.of(["prepare"]), plain_screen(lambda line: None))
        config = with_prepared_data(experiment.config)
        problems = load_task(config.task.name, **config.task.settings).problems("train")
        return [problem.messages[0]["content"] for problem in problems]

    return prompts


DRAWN = ("prepare.convert=null", "prepare.source=null", "task.settings.train=20", "task.settings.test=4")


@pytest.mark.parametrize("words", [(), DRAWN], ids=["converted", "drawn"])
def test_the_instruct_recipe_asks_for_no_thought(hardgen_prompts, words):
    found = hardgen_prompts("hardgen_instruct_grpo", *words)
    assert len(found) >= 20
    assert all("# Tools" in text and "think" not in text.lower() for text in found)
    assert all("<think>" in text for text in hardgen_prompts("hardgen_thinking_grpo", *words))


@pytest.mark.parametrize("words", [(), DRAWN], ids=["converted", "drawn"])
def test_an_empty_instruction_leaves_the_tools_alone(hardgen_prompts, words):
    """As a shell hands it on: `task.settings.instruction=""` arrives without its quotes."""
    for empty in ("task.settings.instruction=", 'task.settings.instruction=""'):
        found = hardgen_prompts("hardgen_thinking_grpo", *words, empty)
        assert all(text.startswith("# Tools") for text in found)
    (other, *_) = hardgen_prompts("hardgen_thinking_grpo", *words, "task.settings.instruction=Be brief.")
    assert other.startswith("Be brief.\n\n# Tools")


def test_an_instruction_that_prepared_prompts_do_not_have_is_refused(hardgen_prompts):
    hardgen_prompts("hardgen_thinking_grpo")
    (source,) = Path("data").iterdir()
    for instruction in ("", "Be brief."):
        with pytest.raises(
            InputError, match=r"the prompts in .* do not have the `instruction` .*; prepare the data with this"
        ):
            load_task("function_calling", source=source, instruction=instruction).problems("train")
    assert load_task("function_calling", source=source, instruction=INSTRUCTION).problems("train")
    with pytest.raises(InputError, match="instruction=5 is not text; give text, or null"):
        load_task("function_calling", instruction=5)
