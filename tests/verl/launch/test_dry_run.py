"""The dry run: without a GPU, Ray, verl, or weights."""

import subprocess
import sys

import pytest

from egpo.verl.launch.dry_run import dry_run, planned_command, planned_settings
from tests.verl.launch.recipes import SMALL, small


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_it_shows_the_command_and_what_differs_from_stock_verl(device):
    shown = dry_run(small(f"verl.device={device}", "model.path=owner/absent-4B", "update.lr=0.5"))
    assert "-m verl.trainer.main_ppo" in shown
    assert "actor_rollout_ref.actor.optim.lr=0.5" in shown
    table = shown.partition("key of verl's")[2].splitlines()
    place = table.index("actor_rollout_ref.actor")
    row = next(line for line in table[place:] if line.startswith("  optim.lr "))
    assert row.split()[1:] == ["1e-06", "0.5", "update.lr"]
    assert not any(line.startswith("  ppo_epochs ") for line in table), "as in verl"


def test_the_table_fits_a_screen_and_says_where_every_value_comes_from():
    config = small("verl.device=cpu", "name=" + "n" * 90)
    shown = dry_run(config).partition("key of verl's")[2]
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
    shown = f"env {command}".replace(str(command.words[0]), sys.executable, 1)
    code = "import sys; print(chr(10).join(sys.argv[1:]))"
    shown = shown.replace(" -m verl.trainer.main_ppo", f" -c '{code}'", 1)
    said = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True).stdout
    assert tuple(said.splitlines()) == command.words[3:]


def test_a_cluster_hands_the_environment_to_its_workers():
    config = small("verl.address=head:6379")
    words = planned_command(config, planned_settings(config)).words
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
