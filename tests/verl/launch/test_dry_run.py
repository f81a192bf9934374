"""The dry run: without a GPU, Ray, verl, or weights."""

import subprocess
import sys

import pytest

from egpo.errors import ConfigError, InputError
from egpo.serving import engine_options
from egpo.serving.engine_options import ParsedCommand
from egpo.verl.launch import train as train_module
from egpo.verl.launch.dry_run import dry_run, planned_command, planned_settings
from egpo.verl.launch.hosts import CACHE_BYTES, Host
from tests.verl.launch.recipes import SMALL, small
from tests.verl.launch.test_train import STAND_IN


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_it_shows_the_command_and_what_differs_from_stock_verl(device):
    shown = dry_run(small(f"verl.device={device}", "model.path=owner/absent-4B", "update.lr=0.5"))
    assert "-m verl.trainer.main_ppo" in shown
    assert "actor_rollout_ref.actor.optim.lr=0.5" in shown
    table = shown.partition("key of verl ")[2].splitlines()
    place = table.index("actor_rollout_ref.actor")
    row = next(line for line in table[place:] if line.startswith("  optim.lr "))
    assert row.split()[1:] == ["1e-06", "0.5", "update.lr"]
    assert not any(line.startswith("  ppo_epochs ") for line in table), "as in verl"


def test_the_table_fits_a_screen_and_says_where_every_value_comes_from():
    config = small("verl.device=cpu", "name=" + "n" * 90)
    shown = dry_run(config).partition("key of verl ")[2]
    assert max(map(len, shown.splitlines())) <= 120
    words = shown.split()
    for setting in planned_settings(config):
        if setting.key.startswith("ray_kwargs.ray_init.") or setting.key == "trainer.rollout_data_dir":
            assert setting.key.partition(".")[2] in words
            assert set(setting.source.split()) <= set(words)


def test_every_word_reaches_the_process_as_it_is_shown():
    """The shell's reading of what is shown, against the words that are started."""
    config = small('segments.tags=["<a b>", "</a\'b>"]', "name=x")
    command = planned_command(config, planned_settings(config))
    shown = f"env {command}".replace(str(command.arguments[0]), sys.executable, 1)
    code = "import sys; print(chr(10).join(sys.argv[1:]))"
    shown = shown.replace(" -m verl.trainer.main_ppo", f" -c '{code}'", 1)
    said = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True).stdout
    assert tuple(said.splitlines()) == command.arguments[3:]


FULL, EMPTY = (143771, 40000), (143771, 143000)


def test_what_this_machine_s_gpus_would_refuse_is_said(nvidia_smi):
    """It is not an error, because the training may run elsewhere. The lines of `nvidia-smi` are given."""
    nvidia_smi(EMPTY, FULL)
    refused = "On this machine a launch would be refused: "
    assert refused not in dry_run(small("verl.device=cuda"))
    assert refused not in dry_run(small("verl.device=cpu", "verl.gpus=4"))
    assert f"{refused}verl.gpus: 4 GPUs are needed, and this machine has 2; " in dry_run(
        small("verl.device=cuda", "verl.gpus=4")
    )
    shown = dry_run(small("verl.device=cuda", "verl.gpus=2"))
    assert f"{refused}GPU 1: 101.3 of 140.4 GiB are in use by other processes, and vLLM takes 0.50 " in shown
    share = "verl.actor_rollout_ref.rollout.gpu_memory_utilization=0.2"
    assert refused not in dry_run(small("verl.device=cuda", "verl.gpus=2", share))


def test_a_setting_that_depends_on_the_longest_prompt_may_be_missing_for_another():
    """On one GPU vLLM's cache has a fixed size, unless the prompts are so long that it would take the usual share."""
    host = Host(cores=16, memory_bytes=2e11, flash_attention=False, gpu_bytes=2e10)
    config = small("verl.device=cuda", "verl.gpus=1", "rollout.max_prompt_tokens=null")
    shown = dry_run(config, host=host)
    (assumed,) = [line for line in shown.splitlines() if line.startswith("Assuming 512 tokens")]
    assert CACHE_BYTES in assumed
    assert f"+{CACHE_BYTES}=" in shown


def test_an_unknown_option_of_vllm_is_refused_with_the_nearest(monkeypatch):
    parsed = ParsedCommand(("max-num-seqs", "swap-space"), "", 1, 1, 1, 0.9)
    monkeypatch.setattr(engine_options, "ask_parser", lambda python, words: parsed)
    kwargs = "verl.actor_rollout_ref.rollout.engine_kwargs.vllm"
    with pytest.raises(InputError, match=r"vLLM has no option `max_seqs`; did you mean `max-num-seqs`"):
        dry_run(small(f"{kwargs}.max_seqs=3"))
    assert "engine_kwargs.vllm.swap_space=4" in dry_run(small(f"{kwargs}.swap_space=4"))


def test_a_cluster_hands_the_environment_to_its_workers():
    config = small("verl.address=head:6379")
    words = planned_command(config, planned_settings(config)).arguments
    handed = [word for word in words if word.startswith("+ray_kwargs.ray_init.runtime_env.env_vars.")]
    assert any("VERL_PLATFORM=cpu" in word for word in handed)


def test_the_command_line_writes_nothing(tmp_path):
    words = [sys.executable, "-m", "egpo", "train", *SMALL, f"runs={tmp_path / 'runs'}", "--dry-run"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "Nothing was started." in done.stdout
    assert not (tmp_path / "runs").exists()


def test_a_key_that_verl_ignores_ends_with_code_2(tmp_path):
    words = [sys.executable, "-m", "egpo", "train", *SMALL, "verl.trainer.max_checkpoint_limit=3", "--dry-run"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "write `trainer.max_actor_ckpt_to_keep`" in done.stderr


REFUSED_BY_THE_PLUGIN = [
    ("verl.algorithm.rollout_correction.bypass_mode=true", "bypass_mode skips the pass that computes the entropy"),
    ("verl.trainer.use_v1=false", "needs the entropy that this deprecated trainer drops"),
    ("verl.trainer.v1.trainer_mode=separate_async", "trainer mode `separate_async` does not pass `egpo`"),
    ("verl.actor_rollout_ref.rollout.temperature=0", "the entropy of greedy sampling is 0 everywhere"),
    ("verl.algorithm.egpo.lamm=0.4", "did you mean `lam`"),
    ("verl.algorithm.lam=0.9", "that is GAE's lambda, which `egpo` does not have"),
]


@pytest.mark.parametrize(("word", "message"), REFUSED_BY_THE_PLUGIN)
def test_it_refuses_what_the_plug_in_would_refuse_inside_verl(word, message):
    with pytest.raises(ConfigError, match=message):
        dry_run(small("algorithm.estimator=egpo", word))


def test_every_recipe_of_the_table_of_refusals_passes_without_the_refused_word():
    assert "verl.trainer.main_ppo" in dry_run(small("algorithm.estimator=egpo"))


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        (["model.device=cuda"], "model.device: verl uses verl.device"),
        (["algorithm.constant_groups=replace", "algorithm.max_refills=2"], "algorithm.max_refills: verl samples until"),
        (["verl.critic.optim.lr=1e-5"], "verl.critic.optim.lr: `grpo` trains no critic"),
        (["verl.algorithm.gamma=0.9"], "verl.algorithm.gamma: it belongs to GAE"),
    ],
)
def test_it_warns_of_settings_without_effect_under_verl(words, setting):
    assert f"No effect under verl: {setting}" in dry_run(small(*words))
    assert "No effect" not in dry_run(small())


def test_a_run_that_is_there_is_refused_or_resumed(tmp_path):
    config = small(f"runs={tmp_path}", "name=first", "verl.gpus=1")
    checkpoint = tmp_path / "first" / "checkpoints" / "global_step_2"
    (checkpoint / "actor").mkdir(parents=True)
    for name in ("data.pt", "actor/model_world_size_1_rank_0.pt"):
        (checkpoint / name).touch()
    (checkpoint.parent / "latest_checkpointed_iteration.txt").write_text("2")
    (tmp_path / "first" / "config.yaml").write_text("name: first\n")
    with pytest.raises(InputError, match="already contains a run"):
        dry_run(config)
    assert f"trainer.resume_from_path={checkpoint}" in dry_run(config, resume=True)
    with pytest.raises(InputError, match="no complete checkpoint of step 1"):
        dry_run(config, resume_from=1)


def test_egpo_run_and_egpo_train_show_the_same_command(tmp_path):
    """Prepared problems have another data source than drawn ones, and so another reward setting."""
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 2?", "answer": "#### 3"}\n' * 4)
    (tmp_path / "recipe.yaml").write_text("prepare: {source: rows.jsonl, train: 32, test: 8}\n")
    words = [*(word for word in SMALL if not word.startswith("task.")), "task.name=gsm8k"]
    shown = [
        subprocess.run(
            [sys.executable, "-m", "egpo", verb, "recipe.yaml", *words, "--dry-run"],
            capture_output=True, text=True, check=True, cwd=tmp_path,
        ).stdout
        for verb in ("run", "train")
    ]  # fmt: skip
    assert shown[0].endswith(shown[1])
    assert shown[1].startswith("VERL_FILE_LOGGER_PATH=")


@pytest.mark.parametrize("verb", ["run", "train"])
def test_a_source_that_is_not_here_is_noticed_with_both_ways_out(verb, tmp_path):
    (tmp_path / "recipe.yaml").write_text("prepare: {source: hardgen.jsonl, convert: {format: hardgen}}\n")
    words = ["engine=verl", "model.path=egpo-tiny", "task.name=function_calling", "--dry-run"]
    command = [sys.executable, "-m", "egpo", verb, "recipe.yaml", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "`hardgen.jsonl` is not on this machine" in said
    assert "under `data` in the machine file (egpo.machine.yaml)" in said
    assert "prepare.source=null prepare.convert=null" in said


class StartedError(Exception):
    """In place of the process that would be started."""


@pytest.mark.parametrize("limit", ["120", "null"])
def test_the_command_that_is_shown_is_the_one_that_is_started(limit, tmp_path, monkeypatch):
    """Word by word, but for the words that the dry run itself says are known only at launch."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    python.chmod(0o755)
    config = small(f"verl.python={python}", f"runs={tmp_path / 'runs'}", f"rollout.max_prompt_tokens={limit}")
    planned, shown = planned_command(config, planned_settings(config)), dry_run(config)
    commands = []

    def capture(command, log):
        commands.append(command)
        raise StartedError

    monkeypatch.setattr(train_module, "start", capture)
    with pytest.raises(StartedError):
        train_module.train(config)
    differing = {*commands[0].arguments} ^ {*planned.arguments}
    assumed = shown.partition("sets it): ")[2].partition(".\n")[0].split(", ") if limit == "null" else []
    assert {word.partition("=")[0] for word in differing} <= {*assumed}
    assert bool(differing) == (limit == "null")
    drawn = {"EGPO_LAUNCH", "VERL_FILE_LOGGER_PATH"}
    assert {name for name in planned.environment if planned.environment[name] != commands[0].environment[name]} == drawn
    assert planned.environment.keys() == commands[0].environment.keys()
