"""docs/coming_from.md: every key, verb and recipe of ours that it names exists, and every key of verl's is verl's."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from egpo.cli.main import app
from egpo.config import Config
from egpo.recipes import recipe_names
from egpo.sections import key_paths
from egpo.tasks.loading import TASKS, _setting_names
from egpo.verl.launch.schema.known import schema

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "coming_from.md").read_text()
KEYS = {".".join(key) for key in key_paths(Config)}
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


@pytest.mark.parametrize("theirs", [theirs for section, theirs, _ in ROWS if section == "verl"])
def test_what_the_page_calls_verls_is_known_to_verl(theirs):
    for word in re.findall(r"`([^`]+)`", theirs):
        assert word.startswith("python -m verl.") or schema().knows(word), word
