"""docs/coming_from.md: every key, verb and recipe of ours that it names exists, and every key of verl's is verl's."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from egpo.cli.main import app
from egpo.config import Config, SftConfig, load_config
from egpo.config.old_spellings import OTHER_TOOLS
from egpo.errors import ConfigError
from egpo.recipes import recipe_names
from egpo.sections import key_paths
from egpo.tasks.loading import TASKS, _setting_names
from egpo.verl.launch.schema.known import schema

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "coming_from.md").read_text()
KEYS = {".".join(key) for key in key_paths(Config)}
LAST_PARTS = {key.rpartition(".")[2] for key in KEYS}
SETTINGS = {f"task.settings.{name}" for task in TASKS.values() for name in _setting_names(task) or ()}


def rows():
    """(section, theirs, ours) of every table."""
    section = ""
    for line in PAGE.splitlines():
        section = line[3:] if line.startswith("## ") else section
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| ") else []
        if len(cells) == 2 and cells != ["there", "here"]:
            yield section, *cells


ROWS = list(rows())
OURS = sorted({word for _, _, ours in ROWS for word in re.findall(r"`([^`]+)`", re.sub(r"\([^)]*\)", "", ours))})


def test_there_is_a_table_for_each_system():
    assert len({section for section, _, _ in ROWS}) == 5
    assert len(ROWS) > 80
    assert len(OURS) > 70


@pytest.mark.parametrize("word", OURS)
def test_what_the_page_calls_ours_exists(word):
    if word.startswith("egpo "):
        assert_is_a_command(word.split()[1:])
    elif word.startswith("verl."):
        key = word.partition("=")[0]
        assert key in KEYS or schema().knows(key.removeprefix("verl."))
    else:
        assert word in KEYS | SETTINGS | {"verl:", "module:Class"}


def assert_is_a_command(words):
    command = get_command(app)
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command = command.commands[words[0]]
        words = words[1:]
    assert command is not get_command(app)
    for word in words:
        options = {option for parameter in command.params for option in parameter.opts}
        assert word in recipe_names() or word in options, word


def pairs(section):
    """(theirs, ours) of the rows that name as many keys on one side as on the other."""
    for found, theirs, ours in ROWS:
        words = [re.findall(r"`([^`]+)`", re.sub(r"\([^)]*\)", "", side)) for side in (theirs, ours)]
        if found.startswith(section) and len(words[0]) == len(words[1]):
            yield from zip(*words, strict=True)


@pytest.mark.parametrize("section", ["TRL", "verl"])
def test_the_page_and_the_table_of_suggestions_agree(section):
    found = {theirs: ours for theirs, ours in pairs(section) if ours in KEYS and theirs != ours}
    found.pop("data.val_files", None)  # its row names two ways for the two files
    assert len(found) > 20
    suggested = {theirs: OTHER_TOOLS.get(theirs) for theirs in found if theirs.rpartition(".")[2] not in LAST_PARTS}
    assert suggested == {theirs: found[theirs] for theirs in suggested}


def test_every_suggestion_is_a_key_of_ours_and_every_key_of_verls_is_on_the_page():
    sft = {".".join(key) for key in key_paths(SftConfig)}
    assert set(OTHER_TOOLS.values()) <= KEYS | sft
    assert [theirs for theirs in OTHER_TOOLS if "." in theirs and f"`{theirs}`" not in PAGE] == []


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("learning_rate=1e-6", "update.lr"),
        ("num_generations=8", "rollout.n"),
        ("beta=0.1", "update.kl"),
        ("update.beta=0.1", "update.kl"),
        ("per_device_train_batch_size=8", "rollout.prompts"),
        ("max_completion_length=64", "rollout.max_response_tokens"),
        ("max_new_tokens=64", "rollout.max_response_tokens"),
        ("actor_rollout_ref.actor.optim.lr=1e-6", "update.lr"),
        ("trainer.total_training_steps=3", "steps"),
        ("algorithm.adv_estimator=egpo", "algorithm.estimator"),
        ("temperature=0.7", "rollout.temperature"),
    ],
)
def test_a_key_of_another_tool_is_answered_with_ours(word, key):
    with pytest.raises(ConfigError) as caught:
        load_config("countdown_tiny", [word])
    assert f"did you mean `{key}`?" in str(caught.value)


@pytest.mark.parametrize("theirs", [theirs for section, theirs, _ in ROWS if section == "verl"])
def test_what_the_page_calls_verls_is_known_to_verl(theirs):
    for word in re.findall(r"`([^`]+)`", theirs):
        assert word.startswith("python -m verl.") or schema().knows(word), word
