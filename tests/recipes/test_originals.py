"""The earlier systems' own settings, as verl is told them; and published figures stand over these recipes alone."""

import re
from pathlib import Path

import pytest

from egpo.config import load_config
from egpo.recipes import RECIPES
from egpo.runs.folder import RunFolder
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.problems import planned_files
from egpo.verl.launch.refusals import refuse_what_verl_lacks
from egpo.verl.launch.translation import translate

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
HARDGEN = {
    f"{ROLLOUT}.n": 4,
    f"{ROLLOUT}.temperature": 1.0,
    "data.max_response_length": 1024,
    "data.max_prompt_length": 9216,
    "data.filter_overlong_prompts": True,
    f"{ACTOR}.ppo_mini_batch_size": 32,
    f"{ACTOR}.clip_ratio_high": 0.28,
    f"{ACTOR}.optim.weight_decay": 1e-4,
    f"{ACTOR}.ppo_epochs": 1,
    "trainer.total_training_steps": 950 // 64,
    "data.train_batch_size": 64,
}
ORIGINALS = {
    "hardgen_thinking_grpo": {**HARDGEN, "algorithm.adv_estimator": "grpo"},
    "hardgen_thinking_egpo": {
        **HARDGEN,
        "algorithm.adv_estimator": "egpo",
        "algorithm.egpo.entropy_mode": "response",
        "algorithm.egpo.lam": 0.4,
        "algorithm.egpo.alpha": 2.0,
    },
    "hardgen_instruct_grpo": {**HARDGEN, "algorithm.adv_estimator": "grpo"},
    "countdown": {
        f"{ACTOR}.optim.lr": 2e-6,
        f"{ACTOR}.optim.lr_scheduler_type": "cosine",
        f"{ACTOR}.optim.lr_warmup_steps": int(0.1 * 64),
        f"{ACTOR}.optim.weight_decay": 0.01,
        f"{ROLLOUT}.n": 16,
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_ctrl.kl_coef": 0.01,
        f"{ACTOR}.use_kl_loss": False,
        "data.train_batch_size": 64,
        "data.max_response_length": 2048,
        "trainer.total_training_steps": 64,
        "algorithm.adv_estimator": "grpo",
    },
    "gsm8k": {
        f"{ACTOR}.optim.lr": 1e-6,
        f"{ROLLOUT}.n": 16,
        f"{ACTOR}.kl_loss_coef": 0.01,
        "data.train_batch_size": 32,
        "reward.custom_reward_function.reward_kwargs.mode": "shaped",
        "trainer.total_training_steps": 7473 // 32,
        "algorithm.adv_estimator": "grpo",
    },
    "mixed_calibrated": {
        "data.train_batch_size": 16,
        "trainer.total_training_steps": 5,
        "algorithm.adv_estimator": "egpo_calibrated",
    },
}
FIGURES = {
    "hardgen_thinking_grpo": "61.7 +- 1.9",
    "hardgen_thinking_egpo": "61.9 +- 0.9",
    "hardgen_instruct_grpo": "25.2",
    "countdown": "56.0 -> 78.4 %",
}


def verl_keys(config):
    places = VerlPlaces(RunFolder(Path(config.runs) / config.name))
    return {one.key: one.value for one in translate(config, places, planned_files(config, places))}


def test_every_original_is_in_the_table():
    assert {path.stem for path in (RECIPES / "originals").glob("*.yaml")} == set(ORIGINALS)


@pytest.mark.parametrize(("name", "wanted"), ORIGINALS.items())
def test_an_original_tells_verl_its_own_settings(name, wanted):
    config = load_config(RECIPES / "originals" / f"{name}.yaml", ["verl.gpus=1"])
    refuse_what_verl_lacks(config)
    keys = verl_keys(config)
    assert {key: keys.get(key) for key in wanted} == wanted


@pytest.mark.parametrize("name", [name for name in ORIGINALS if name.startswith("hardgen")])
def test_the_hardgen_originals_read_the_first_1000_rows(name):
    convert = load_config(RECIPES / "originals" / f"{name}.yaml").prepare.convert
    assert (convert.max_samples, convert.shuffle, convert.test_size) == (1000, False, 0.05)


@pytest.mark.parametrize("name", ORIGINALS)
def test_an_original_and_the_improved_recipe_are_two_runs_of_one_model_and_task(name):
    original, improved = (load_config(path / f"{name}.yaml") for path in (RECIPES / "originals", RECIPES))
    assert (original.model.path, original.task.name) == (improved.model.path, improved.task.name)
    assert original.name != improved.name


@pytest.mark.parametrize("name", FIGURES)
def test_a_published_figure_stands_over_its_own_settings_alone(name):
    original, improved = ((path / f"{name}.yaml").read_text() for path in (RECIPES / "originals", RECIPES))
    assert FIGURES[name] in original
    assert f"originals/{name}" in improved
    others = [path for path in RECIPES.rglob("*.yaml") if path != RECIPES / "originals" / f"{name}.yaml"]
    assert [path.name for path in others if FIGURES[name] in path.read_text()] == []


def test_no_recipe_with_other_settings_shows_a_published_training_result():
    """`egpo_paper.yaml` has the paper's own settings."""
    for path in RECIPES.glob("*.yaml"):
        head = " ".join(re.findall(r"^# (.*)$", path.read_text(), re.MULTILINE))
        assert path.stem == "egpo_paper" or not re.search(r"[Pp]ublished[^.]*?: [^.]*\d", head), path.name
