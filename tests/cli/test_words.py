"""Completion, advice for options that are settings, `-h`, and the first line of a verb."""

import os
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from egpo.cli.main import app
from egpo.cli.words import advise_on_option, complete_recipe, complete_setting, complete_word, print_first_line
from egpo.errors import InputError
from tests.waiting import without_heartbeats

RUNNER = CliRunner()


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["train", "countdown_tiny", "--steps", "3"], "write steps=3"),
        (["train", "--steps=3"], "write steps=3"),
        (["train", "--learning-rate", "1e-6"], "write update.lr=1e-6"),
        (["train", "--num_generations", "8"], "write rollout.n=8"),
        (["run", "r", "--lr"], "write update.lr=VALUE"),
        (["sft", "r", "--epochs", "2"], "write epochs=2"),
        (["plan", "--max-new-tokens", "9"], "write rollout.max_response_tokens=9"),
    ],
)
def test_an_option_that_is_a_setting_is_advised_as_an_override(words, advice):
    option = next(word for word in words if word.startswith("--")).partition("=")[0]
    with pytest.raises(InputError, match=advice.replace(".", r"\.")):
        advise_on_option(option, words)


@pytest.mark.parametrize("words", [["train", "--frobnicate", "3"], ["report", "--steps", "3"], ["train", "-x"], []])
def test_any_other_option_gets_no_advice(words):
    advise_on_option(words[1] if len(words) > 1 else "--steps", words)


def test_the_command_line_prints_the_advice_and_ends_with_code_2():
    command = [sys.executable, "-m", "egpo", "train", "countdown_tiny", "--steps", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    first, advice = without_heartbeats(done.stderr)
    assert first == "loading countdown_tiny ..."
    assert advice == "egpo: --steps: no such option; settings have no dashes; write steps=3"


def test_recipes_files_and_settings_are_completed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("include: countdown_tiny\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.yaml").write_text("")
    found = complete_recipe("countdown")
    assert found == sorted(found)
    assert {"countdown", "countdown_smollm2", "countdown_tiny"} <= {*found}
    assert all(name.startswith("countdown") for name in found)
    assert complete_recipe("mi") == ["mixed_calibrated", "mixed_tiny", "mine.yaml"]
    assert complete_recipe("more/") == ["more/other.yaml"]
    assert complete_setting("update.lr") == ["update.lr="]
    assert "rollout.temperature=" in complete_setting("rollout.")
    assert "rollout=" not in complete_setting("rollout")
    assert complete_word("no-such-thing") == []


def test_the_shell_gets_the_completions():
    words = {"COMP_WORDS": "egpo train countdown_tiny update.lr", "COMP_CWORD": "3", "_EGPO_COMPLETE": "complete_bash"}
    code = "import sys; sys.argv = ['egpo']; from egpo.cli.main import app; app(prog_name='egpo')"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | words, capture_output=True, text=True)
    assert done.stdout.split() == ["update.lr="]


def commands(command, words=()):
    yield list(words)
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


@pytest.mark.parametrize("words", list(commands(get_command(app))), ids=" ".join)
def test_every_verb_has_a_short_option_for_help(words):
    done = RUNNER.invoke(app, [*words, "-h"])
    assert done.exit_code == 0
    assert "Usage" in done.output


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["train", "countdown_tiny", "steps=1"], "loading countdown_tiny ...\n"),
        (["train", "--resume", "model.path=m"], "loading ...\n"),
        (["eval", "egpo-tiny", "--task", "countdown"], "loading egpo-tiny ...\n"),
        (["run", "--only", "prepare,train", "countdown_tiny"], "loading countdown_tiny ...\n"),
        (["train", "--dry-run", "countdown_tiny"], "loading countdown_tiny ...\n"),
        (["doctor"], "checking this machine ...\n"),
        (["audit", "sandbox"], "testing the sandbox ...\n"),
        (["push", "runs/a", "me/a"], "reading runs/a ...\n"),
        (["train", "-h"], ""),
        (["recipes"], ""),
        ([], ""),
    ],
)
def test_the_first_line_says_what_is_loaded(words, line, capsys):
    print_first_line(words)
    shown = capsys.readouterr()
    assert (shown.err, shown.out) == (line, "")


def test_the_first_line_comes_before_torch_is_imported():
    code = (
        "import builtins, sys; sys.argv = ['egpo', 'train', 'nothing']\n"
        "from egpo.cli import main as entry\n"
        "shown = []; before = entry.print_first_line\n"
        "entry.print_first_line = lambda words: (shown.extend(m for m in ('torch', 'numpy', 'pydantic') "
        "if m in sys.modules), before(words))\n"
        "try:\n    entry.main()\nexcept SystemExit: pass\n"
        "print(shown)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("verb", ["train", "sft", "plan"])
def test_a_verb_without_a_recipe_names_one_that_works(verb):
    done = RUNNER.invoke(app, [verb])
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith(f"egpo {verb}: no recipe is given; name one, as in `egpo {verb} c")
    assert "egpo recipes" in str(done.exception)
