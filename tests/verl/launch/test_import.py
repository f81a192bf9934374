"""verl's configurations as recipes: the inverse of the translation, and a list of whatever has no place in a recipe."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from egpo.advantages import ESTIMATORS
from egpo.config import Config, load_config, load_recipe
from egpo.config.sections.algorithm import Algorithm
from egpo.config.sections.training import Update
from egpo.errors import InputError
from egpo.losses import LOSSES
from egpo.recipes import RECIPES as SHIPPED
from egpo.verl.launch.dry_run import planned_command, planned_settings
from egpo.verl.launch.hydra_overrides import format_value, parse_value
from egpo.verl.launch.override_files import VerlSettings, read_verl_file
from egpo.verl.launch.recipe_import import import_verl
from egpo.verl.launch.schema.known import schema
from egpo.verl.launch.shell_script import simple_commands
from tests.verl.launch.recipes import small

RECIPES = [
    path
    for path in sorted(SHIPPED.rglob("*.yaml"))
    if path.parent.name != "parts"
    and isinstance(config := load_recipe(path), Config)
    and config.cold_start is None
    and config.task.name != "toolbox"
]
"""Recipes that can be given to verl as they are, and read back: a cold start is a stage of its own, before verl, and
the rows of episodes name an environment, not the task."""
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_FIELDS = {*Algorithm.model_fields, *Update.model_fields, *LOSSES, *ESTIMATORS}
LATER_KEYS = [
    overrides
    for needed, overrides in [
        ("rloo", ["algorithm.estimator=rloo"]),
        ("gtpo", ["algorithm.estimator=gtpo"]),
        ("clip_cov", ["update.loss=clip_cov", "update.clip_cov.ratio=0.01"]),
        ("kl_cov", ["update.loss=kl_cov", "update.kl_cov.weight=0.5"]),
        ("cispo", ["update.loss=cispo"]),
        ("entropy_weight", ["update.entropy_weight=0.01"]),
        ("importance_cap", ["update.importance_cap=2.5"]),
        ("controller", ["update.controller=adaptive_entropy", "update.adaptive_entropy.target=0.3"]),
        ("overlong", ["algorithm.overlong.tokens=16", "algorithm.overlong.penalty=0.5"]),
        ("random_rewards", ["algorithm.random_rewards=0.5"]),
        ("filter", ["algorithm.constant_groups=replace", "algorithm.filter=all_or_none"]),
    ]
    if needed in _FIELDS
]
"""Settings of methods that are in the tables of this version."""
UNTRANSLATED = {
    "eval", "probe", "prepare", "task.settings", "watch.rollouts_every", "watch.trackers", "validation.problems",
    "checkpoints.keep_last", "checkpoints.keep_best", "algorithm.max_refills", "verl.python", "verl.patience_minutes",
    "model.device",
}  # fmt: skip
"""Keys of a recipe that verl is not told."""

SCRIPT = r"""#!/bin/bash
set -x
MODEL=${MODEL:-Qwen/Qwen2.5-3B}   # the base
N=5
COMMON=(
  trainer.critic_warmup=0
  "trainer.logger=['console','wandb','clearml']"
)
export VLLM_X=1
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.train_batch_size=1024 data.max_prompt_length=512 \
    data.max_response_length=1024 \
    data.filter_overlong_prompts=True \
    actor_rollout_ref.model.path="${MODEL}" \
    actor_rollout_ref.actor.optim.lr=2e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.n=$N \
    +trainer.foo=3 ~data.seed ++trainer.bar=1,2 \
    'actor_rollout_ref.rollout.max_model_len=${data.max_response_length}' \
    'data.custom_cls.path=${oc.env:HOME}/x.py' \
    actor_rollout_ref.rollout.val_kwargs.n=$(nproc) \
    trainer.experiment_name='qwen 3b' trainer.default_local_dir=ckpts \
    trainer.n_gpus_per_node=8 trainer.total_training_steps=50 \
    trainer.save_freq=20 trainer.test_freq=-1 \
    reward.custom_reward_function.path=mine.py \
    "${COMMON[@]}" --config-name=mine $UNSET "$@" 2>&1 | tee log.txt
"""


def settings_of(config):
    return {one.key: one.value for one in planned_settings(config)}


def told(config):
    """The part of a config that verl is told, without the settings of an estimator that is not chosen."""
    dump = config.model_dump(mode="json")
    for key in UNTRANSLATED:
        section, _, name = key.partition(".")
        (dump[section] if name else dump).pop(name or section)
    for estimator in ESTIMATORS.keys() & dump["algorithm"].keys() - {config.algorithm.estimator}:
        del dump["algorithm"][estimator]
    for loss in LOSSES.keys() & dump["update"].keys() - {config.update.loss}:
        del dump["update"][loss]
    if dump["update"]["kl"] == 0:
        del dump["update"]["kl_in"], dump["update"]["kl_estimator"]
    return dump


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: str(path.relative_to(SHIPPED)))
@pytest.mark.parametrize("words", [["verl.gpus=8"], ["verl.device=cpu"]], ids=["gpus", "cpu"])
def test_what_a_recipe_tells_verl_is_imported_as_the_same_settings(recipe, words, tmp_path):
    """The law: import(translate(recipe)) is the recipe, as far as verl is told of it; through the printed command."""
    config = load_config(recipe, ["engine=verl", *words])
    script = tmp_path / "run.sh"
    script.write_text(str(planned_command(config, planned_settings(config))))
    imported = import_verl(read_verl_file(script))
    assert (imported.left_out, imported.below_verl, imported.notes) == ([], [], [])
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(imported.recipe))
    again = load_config(tmp_path / "again.yaml")
    assert told(again) == told(config)
    assert settings_of(again) == settings_of(config)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.lora.rank=4", "model.lora.layers=[q_proj]", "model.dtype=float32", "verl.device=cuda"],
        ["model.lora.rank=8"],
        ["update.kl=0.05", "update.kl_in=reward", "update.kl_estimator=k1"],
        ["update.kl=0.05", "update.kl_estimator=k2"],
        ["update.aggregation=fixed_length", "algorithm.constant_groups=replace", "rollout.rows_at_once=8"],
        ["update.dual_clip=5.0", "update.clip=0.1", "update.clip_high=0.28", "update.mini_batch=2", "update.epochs=3"],
        ["rollout.top_k=20", "rollout.top_p=0.9", "rollout.max_prompt_tokens=300", "update.micro_tokens=20000"],
        ["validation.temperature=0.6", "validation.n=4", "seed=7", "name=other", "runs=elsewhere/deep"],
        ["validation.every=0", "checkpoints.every=0", "steps=9"],
        ["algorithm.estimator=egpo", "algorithm.egpo.lam=0.7", 'segments.tags=["<a>", "</a>"]'],
        ["algorithm.estimator=egpo_calibrated", "algorithm.egpo_calibrated.sides=asymmetric"],
        ["algorithm.estimator=token_entropy", "algorithm.token_entropy.alpha=0.7"],
        ["update.loss=gspo", "update.clip=0.0003", "update.clip_high=0.0004"],
        ["update.loss=tests.verl.test_losses:weighted", "update.loss_settings.weight=2.0"],
        *LATER_KEYS,
        ["verl.address=head:6379", "verl.device=cuda", "verl.gpus=4", "verl.nodes=2", "verl.tensor_parallel=2"],
        ["model.template.enable_thinking=false", "model.gradient_checkpointing=true", "model.path=some/Model-7B"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_other_settings_come_back_too(overrides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = small(*overrides)
    imported = import_verl(VerlSettings(settings_of(config)))
    assert (imported.left_out, imported.below_verl) == ([], [])
    again = load_config(None, [f"{key}={json.dumps(value)}" for key, value in imported.recipe.items()])
    assert told(again) == told(config)


def test_a_script_of_verls_own_kind_is_carried_over_or_listed(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    imported = import_verl(read_verl_file(tmp_path / "run.sh"))
    recipe = imported.recipe
    assert recipe["model"]["path"] == "Qwen/Qwen2.5-3B"
    assert recipe["task"] == {"name": "gsm8k", "settings": {"source": "~/data/gsm8k"}}
    assert (recipe["rollout"]["n"], recipe["rollout"]["prompts"], recipe["steps"]) == (5, 1024, 50)
    assert recipe["update"]["lr"] == 2e-6
    assert recipe["update"]["warmup_steps"] == 5
    assert recipe["update"]["kl"] == 0.001, "verl's default weight of the loss that is switched on"
    assert recipe["update"]["dual_clip"] == 3.0, "verl's default, which is not ours"
    assert "update.dual_clip" in imported.assumed
    assert recipe["watch"] == {"trackers": ["wandb"]}
    assert recipe["verl"]["actor_rollout_ref"] == {"rollout": {"gpu_memory_utilization": 0.6, "max_model_len": 1024}}
    assert imported.below_verl == [f"{ROLLOUT}.gpu_memory_utilization", f"{ROLLOUT}.max_model_len"]
    left_out = [str(one) for one in imported.left_out]
    for part in (
        "~data.seed: a recipe cannot remove",
        "++trainer.bar=1,2: a sweep",
        "val_kwargs.n=$(nproc): a command or a sum",
        "$UNSET: the shell variable UNSET is not set",
        "$@: an argument of the script",
        "--config-name=mine: an option of Hydra",
        "data.custom_cls.path=${oc.env:HOME}/x.py: an interpolation that only Hydra resolves",
        "trainer.foo=3: verl has no `trainer.foo`",
        "trainer.default_local_dir=ckpts: the launcher sets it itself",
        "reward.custom_reward_function.path=mine.py: in a recipe a custom reward is a task",
    ):
        assert any(part in line for line in left_out), (part, left_out)
    assert len(left_out) == 10
    assert any("clearml" in note for note in imported.notes)
    assert any("`qwen-3b` replaces `qwen 3b`" in note for note in imported.notes)


def test_every_given_key_is_carried_or_listed(tmp_path):
    """verl's whole configuration: nothing of it is lost."""
    values = {key: value for key, value in schema().defaults.items() if value != "???"}
    values |= {f"{ACTOR}.ppo_epochs": 3, "trainer.balance_batch": False, "algorithm.gamma": 0.9, "nothing.known": 1}
    values["actor_rollout_ref.model.path"] = "Qwen/Qwen2.5-3B"  # that of verl's defaults is no folder here
    imported = import_verl(VerlSettings(dict(values)))
    config = load_config(None, [f"{key}={json.dumps(value)}" for key, value in imported.recipe.items()])
    out = {one.key: one.value for one in planned_settings(config.model_copy(update={"steps": 9}))}
    listed = {one.text.partition("=")[0] for one in imported.left_out}
    assert "nothing.known" in listed
    assert {"trainer.balance_batch", "algorithm.gamma", "algorithm.adv_estimator"} <= set(imported.below_verl)
    assert config.update.epochs == 3
    for key in imported.below_verl:
        assert out[key] == values[key]


def test_a_yaml_of_verls_is_read_with_its_interpolations(tmp_path):
    (tmp_path / "verl.yaml").write_text(
        "defaults: [ppo_trainer, reward: other, _self_]\n"
        "data:\n  max_response_length: 64\n  train_batch_size: ???\n  filter_overlong_prompts: true\n"
        "  max_prompt_length: ${data.max_response_length}\n"
        "algorithm: {adv_estimator: egpo, egpo: {entropy_mode: joint}, egpo_lambda: 0.3}\n"
        "actor_rollout_ref: {rollout: {n: 4, seed: '${.n}'}}\n"
    )
    imported = import_verl(read_verl_file(tmp_path / "verl.yaml"))
    recipe = imported.recipe
    assert sorted(one.text for one in imported.left_out) == [
        f"{ROLLOUT}.seed=${{.n}}", "data.train_batch_size: ???", "defaults: {'reward': 'other'}",
    ]  # fmt: skip
    assert recipe["rollout"]["max_prompt_tokens"] == 64
    assert recipe["algorithm"] == {"estimator": "egpo", "egpo": {"lam": 0.3, "entropy_mode": "response"}}


def test_a_file_of_overrides_needs_no_command(tmp_path):
    (tmp_path / "overrides.txt").write_text("data.train_batch_size=64  # a comment\n\n+x=3 \\\n trainer.nnodes=2\n")
    imported = import_verl(read_verl_file(tmp_path / "overrides.txt"))
    assert imported.recipe["rollout"]["prompts"] == 64
    assert imported.recipe["verl"]["nodes"] == 2
    assert [one.text for one in imported.left_out] == ["x=3"]


def test_a_task_from_outside_comes_back():
    reward = "reward.custom_reward_function"
    words = {
        "algorithm.adv_estimator": "grpo",
        f"{reward}.path": "pkg://egpo.verl.launch.task_reward",
        f"{reward}.name": "compute_score",
        f"{reward}.reward_kwargs.task": "mine:Task",
        f"{reward}.reward_kwargs.settings": '{"level": 3}',
    }
    imported = import_verl(VerlSettings(words))
    assert imported.recipe["task"] == {"name": "mine:Task", "settings": {"level": 3}}
    assert imported.left_out == []


@pytest.mark.parametrize("estimator", ["grpo", "egpo", "tests.local.outside_estimators:scaled"])
def test_limits_of_episodes_come_back(estimator):
    values = {"max_turns": 3, "history": "keep", "call_timeout_s": 5.0}
    limits = {f"algorithm.egpo.episodes.{name}": value for name, value in values.items()}
    imported = import_verl(VerlSettings({"algorithm.adv_estimator": estimator, **limits}))
    assert imported.recipe["rollout"]["episodes"] == values
    assert imported.left_out == []
    assert "episodes" not in str({**imported.recipe, "rollout": None})


def test_an_estimator_that_is_not_ours_goes_to_verl_as_it_is():
    imported = import_verl(VerlSettings({"algorithm.adv_estimator": "opo", "algorithm.egpo.lam": 0.3}))
    assert imported.recipe["verl"]["algorithm"] == {"adv_estimator": "opo"}
    assert [one.reason for one in imported.left_out] == ["not a setting of the estimator `opo`"]
    assert import_verl(VerlSettings({"trainer.nnodes": 1})).recipe["verl"]["algorithm"] == {"adv_estimator": "gae"}


def test_a_value_that_a_recipe_cannot_have_goes_to_verl_as_it_is():
    imported = import_verl(VerlSettings({f"{ROLLOUT}.temperature": 0.0, f"{ACTOR}.optim.lr_scheduler_type": "wsd"}))
    assert "temperature" not in imported.recipe.get("rollout", {})
    assert {f"{ROLLOUT}.temperature", f"{ACTOR}.optim.lr_scheduler_type"} <= set(imported.below_verl)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.sh", None, "the file does not exist"),
        ("empty.sh", b"", "no settings of verl"),
        ("words.txt", b"hello world", "no settings of verl"),
        ("other.sh", b"python train.py --lr=3\n", "no command runs verl.trainer.main_ppo"),
        ("binary", b"\0\1\2", "binary or too large"),
        ("latin.sh", b"a.b=\xe9", "not UTF-8"),
        ("large.sh", b"a.b=1\n" * 100_000, "binary or too large"),
        ("list.yaml", b"- 1\n", "the file has no keys and values"),
        ("broken.yaml", b"a: [1\n", "not YAML"),
        ("quote.sh", b"x\npython -m verl.trainer.main_ppo a.b='1\n", "quote.sh:2: a quote or a bracket is not closed"),
        ("deep.sh", b"python -m verl.trainer.main_ppo a.b=" + b"${a:-" * 5000 + b"}" * 5000, "nested too deeply"),
        ("x" * 300, None, "give a path whose names have 255 bytes at most"),
    ],
)
def test_a_file_that_is_no_configuration_of_verls_is_one_clear_line(name, content, said, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said.replace(".", r"\.")) as caught:
        read_verl_file(tmp_path / name)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 2


SIMPLE = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SIMPLE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3)
)


@given(VALUES)
def test_values_are_read_as_the_launcher_writes_them(value):
    assert parse_value(format_value(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""), ("null", None), ("True", True), ("1e-6", 1e-6), (".5", 0.5), ("1_000", 1000), ("-3", -3),
        ("[a, 'b c',\"d\"]", ["a", "b c", "d"]), ("{a: 1, b: [x]}", {"a": 1, "b": ["x"]}), ("a b", "a b"),
        (r"a\,b", "a,b"), ("~/x/y-z.parquet", "~/x/y-z.parquet"), ("${a.b}", "${a.b}"), ("Qwen/Q-4B", "Qwen/Q-4B"),
    ],
)  # fmt: skip
def test_hydras_values(text, value):
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["a,b", "choice(a,b)", "[1", "{a:1", "{a}", "'x", "[1]]", "[" * 100])
def test_what_is_no_single_value_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        parse_value(text)


def test_shell_words():
    text = "A=1; export B='two words' C=\"$A-${B}\"\nrun $A \"$B\" ${C} '$A' \\$A x\\\ny ${D-d} # no\n> out 2>&1"
    words = [word.text for command in simple_commands(text, "x.sh") for word in command]
    assert words == [
        "export",
        "run", "1", "two words", "1-two", "words", "$A", "$A", "xy", "d",
    ]  # fmt: skip


def test_egpo_config_import_writes_a_recipe_that_loads(tmp_path, monkeypatch, capsys):
    import sys

    from egpo.cli.main import main

    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(SCRIPT)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["egpo", "config", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, capsys.readouterr()

    code, printed = run("import", "run.sh")
    assert code == 0
    assert "Not converted:\n  ~data.seed: a recipe cannot remove" in printed.err
    code, _ = run("import", "run.sh", "--out", "mine.yaml")
    assert code == 0
    assert Path("mine.yaml").read_text() == printed.out
    assert "#   ~data.seed: a recipe cannot remove" in printed.out
    assert load_config("mine.yaml").rollout.n == 5
    code, printed = run("import", "run.sh", "--out", "mine.yaml")
    assert (code, printed.err) == (
        2,
        "egpo: mine.yaml: this file exists already; replace it with --force, or choose another path\n",
    )
    assert run("import", "run.sh", "--out", "mine.yaml", "--force")[0] == 0
    code, printed = run("import", "nowhere.sh")
    assert (code, printed.err) == (2, "egpo: nowhere.sh: the file does not exist; check the path\n")


KEYS = sorted(
    {*schema().defaults, *settings_of(small("algorithm.estimator=egpo")), "algorithm.egpo_lambda", "x.y", "z"}
)


@example({f"{ACTOR}.policy_loss.loss_mode": [], "algorithm.filter_groups.enable": True})  # lists are not hashable
@example({f"{ACTOR}.policy_loss.loss_mode": "a:b?{", "algorithm.filter_groups.metric": []})
@given(st.dictionaries(st.sampled_from(KEYS), SIMPLE | st.lists(SIMPLE, max_size=2), max_size=8))
def test_no_setting_whatever_its_value_is_lost_or_ends_in_a_traceback(values):
    imported = import_verl(VerlSettings(dict(values)))
    config = Config.model_validate_json(json.dumps({"task": {"name": "a:B"}} | imported.recipe))
    listed = {one.text.partition("=")[0] for one in imported.left_out}
    assert set(imported.below_verl).isdisjoint(listed)
    for key in imported.below_verl:
        section = config.verl.raw
        for part in key.split("."):
            section = section[part]
        assert section == values.get(key, "gae")
