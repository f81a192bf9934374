"""Every recipe loads, says how it is launched, names a task that can be made, and can be tried without its hardware."""

import re

import pytest
from transformers import AutoTokenizer

from egpo.assets import resolve_model
from egpo.cold_starts import cold_start_plan
from egpo.config import Config, load_config, load_recipe
from egpo.demos.demo import RECIPE
from egpo.experiments.plan_text import planned
from egpo.experiments.stages import STAGES, Selection
from egpo.experiments.validate import load_experiments
from egpo.prepared_data import data_plan, with_prepared_data
from egpo.recipes import RECIPES as SHIPPED
from egpo.tasks import load_task
from egpo.tasks.episodes import gold_conversation
from examples.egpo_tiny.lessons import LESSONS

PARTS = SHIPPED / "parts"
RECIPES = sorted(path for path in SHIPPED.rglob("*.yaml") if path.parent != PARTS)
TRAINED = [path for path in RECIPES if isinstance(load_recipe(path), Config)]
TWINS = {
    "hardgen_thinking_grpo": "tool_calls_tiny_think_grpo",
    "hardgen_thinking_egpo": "tool_calls_tiny_egpo",
    "hardgen_instruct_grpo": "tool_calls_tiny_grpo",
    "egpo_paper": "egpo_paper_tiny",
    "mixed_calibrated": "mixed_tiny",
    "countdown": "countdown_tiny",
    "gsm8k": "gsm8k_tiny",
}
EPISODES = ("toolbox_tiny", "toolbox_tiny_egpo")
"""Recipes of episodes for egpo-tiny, which are not the small twins of others."""


def recipe_of(name, *overrides):
    return load_config(name, overrides)


SMOLLM2 = sorted(path.stem for path in TRAINED if "_smollm2" in path.stem)
"""Recipes for one GPU with a small real model, which need no smaller twin."""


def test_every_experiment_has_its_twin():
    assert {path.stem for path in TRAINED} - {*SMOLLM2} == {*TWINS, *TWINS.values(), *EPISODES}


@pytest.mark.parametrize("name", SMOLLM2)
def test_recipes_for_smollm2_share_their_part(name):
    config = recipe_of(name)
    assert (config.model.path, config.model.dtype, config.engine) == ("smollm2-135m", "bfloat16", "local")
    assert (config.rollout.prompts, config.rollout.n, config.rollout.temperature) == (16, 16, 1.0)
    assert set(config.eval.models) == {"base", "cold_start", "trained"}


def test_the_tool_call_recipes_for_smollm2_share_data_and_cold_start():
    names = ("tool_calls_smollm2", "tool_calls_smollm2_egpo", "tool_calls_smollm2_calibrated")
    plans = [cold_start_plan(recipe_of(name)) for name in names]
    assert len({plan.folder for plan in plans}) == 1
    assert len({data_plan(recipe_of(name)).folder for name in names}) == 1
    assert all(plan.is_thinking for plan in plans)
    read = with_prepared_data(recipe_of(names[0]))
    (unseen,) = read.eval.tasks
    assert unseen.settings["source"] == read.task.settings["source"]


def test_the_three_recipes_of_a_real_model_differ_in_their_estimator_alone():
    stems = {path.stem for path in TRAINED if path.stem.endswith("_smollm2")}
    assert {path.stem for path in TRAINED if "smollm2" in path.stem} == {
        f"{stem}{end}" for stem in stems for end in ("", "_egpo", "_calibrated")
    }
    for stem in stems:
        configs = [recipe_of(f"{stem}{end}") for end in ("", "_egpo", "_calibrated")]
        assert [config.algorithm.estimator for config in configs] == ["grpo", "egpo", "egpo_calibrated"]
        assert len({cold_start_plan(config).folder for config in configs}) == 1
        without = [config.model_dump(exclude={"name", "algorithm"}) for config in configs]
        assert without[0] == without[1] == without[2]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_loads_and_its_first_line_launches_it(recipe):
    verbs = ("run", "train") if recipe in TRAINED else ("sft",)
    launch = recipe.read_text().splitlines()[0]
    assert launch.startswith("# ")
    name = recipe.relative_to(SHIPPED).with_suffix("")
    assert any(re.match(f"# egpo {verb} {name}( |$)", launch) for verb in verbs)


@pytest.mark.parametrize("part", sorted(PARTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_part_is_included_somewhere(part):
    texts = [path.read_text() for path in SHIPPED.rglob("*.yaml")]
    assert any(f"include: {place}{part.name}" in text for text in texts for place in ("", "parts/", "../parts/"))


@pytest.mark.parametrize("recipe", TRAINED, ids=lambda path: path.stem)
def test_the_task_of_a_recipe_has_problems(recipe):
    config = load_config(recipe)
    settings = {"train": 8, "test": 4} if config.prepare.source else {}
    if config.task.name == "bfcl":  # the tokens are those of a model that may not be on this machine
        settings |= {"max_prompt_tokens": None, "max_answer_tokens": None}
    task = load_task(config.task.name, **{**config.task.settings, **settings})
    if config.prepare.source is None:
        assert len(task.problems("train")) >= config.rollout.prompts
        assert len(task.problems("test")) >= config.validation.problems


@pytest.mark.parametrize(("full", "tiny"), TWINS.items())
def test_a_twin_has_the_estimator_the_task_and_the_reward_of_its_recipe(full, tiny):
    one, other = recipe_of(full), recipe_of(tiny)
    assert other.model.path == "egpo-tiny"
    assert (one.engine, other.engine) == ("verl", "local")
    assert one.algorithm.settings == other.algorithm.settings
    assert one.algorithm.segment == other.algorithm.segment
    assert one.task.name == other.task.name
    if one.task.name != "countdown":  # the tiny model gains nothing from partial rewards
        assert one.task.settings.get("mode") == other.task.settings.get("mode")


def test_the_pair_that_is_compared_differs_in_its_estimator_alone():
    for pair in (
        ("hardgen_thinking_grpo", "hardgen_thinking_egpo"),
        ("tool_calls_tiny_think_grpo", "tool_calls_tiny_egpo"),
        ("tool_calls_smollm2", "tool_calls_smollm2_egpo"),
        ("tool_calls_smollm2", "tool_calls_smollm2_calibrated"),
        EPISODES,
    ):
        one, other = (recipe_of(name, "name=same", "algorithm={}") for name in pair)
        assert one == other


@pytest.mark.parametrize("recipe", TRAINED, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "words", [["engine=local"], ["engine=verl", "verl.gpus=8"], ["engine=verl", "verl.device=cpu"]]
)
def test_a_dry_run_needs_neither_gpu_nor_ray_nor_weights(recipe, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (experiment,) = load_experiments([str(recipe)], words)
    shown = planned(experiment, Selection())
    assert all(f"\n  {stage} " in shown for stage in STAGES)
    if words[0] == "engine=verl":
        assert "verl.trainer.main_ppo" in shown
    assert list(tmp_path.iterdir()) == []


def test_episodes_of_a_recipe_for_egpo_tiny_can_be_finished_within_its_limits():
    """Gold episodes fit, in turns and in tokens, and the corpus that egpo-tiny learned has the same settings."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("egpo-tiny"))
    (lesson,) = (lesson for lesson in LESSONS if lesson.name == "toolbox")
    for name in EPISODES:
        config = recipe_of(name)
        assert config.task.settings == lesson.settings
        assert config.cold_start is None, "egpo-tiny has learned the toolbox"
        task, rollout = load_task("toolbox", **config.task.settings), config.rollout
        for problem in task.problems("test"):
            turns = [len(tokenizer(text).input_ids) + 1 for text in task.gold_turns(problem)]
            assert len(turns) <= rollout.episodes.max_turns
            assert max(turns) <= rollout.episodes.max_turn_tokens
            conversations = (task.prompt(problem), gold_conversation(task, problem)["messages"])
            texts = [tokenizer.apply_chat_template(messages, tokenize=False) for messages in conversations]
            prompt, whole = (len(tokenizer(text).input_ids) for text in texts)
            assert whole - prompt <= rollout.max_response_tokens


def test_the_demo_is_the_countdown_recipe():
    """As far as training goes; the demo evaluates in its own way."""
    words = ["name=same", "steps=1", "probe={}", "eval={}"]
    assert load_config(RECIPE, words) == recipe_of("countdown_tiny", *words)
