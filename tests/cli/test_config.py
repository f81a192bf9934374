"""`egpo config` on bad input: one clear line for each fault, exit code 2, never a traceback and never a hang."""

import sys
from pathlib import Path

import pytest

import egpo.cli.main as cli_main
from egpo.config import includes
from egpo.errors import ConfigError

ROOT = Path(__file__).parents[2]
RECIPE = "countdown_tiny"
LONG = "x" * 5_000


@pytest.fixture
def egpo(monkeypatch, capsys, tmp_path):
    """Runs a command in an empty folder; gives its exit code and its lines on stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["egpo", *words])
        with pytest.raises(SystemExit) as ended:
            cli_main.main()
        lines = capsys.readouterr().err.splitlines()
        return ended.value.code or 0, [line for line in lines if not line.startswith("loading ")]

    return run


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("task.name=nope", "override `task.name=nope`: unknown task `nope`; choose from `bfcl`, `bfcl_multi_turn`"),
        ("task.name=nosuchmodule:Task", "no module `nosuchmodule`"),
        ("task.settings.mode=nope", "override `task.settings.mode=nope`: mode='nope' is not allowed; choose"),
        ("task.settings.nope=1", "unknown setting `nope`"),
        ("steps=1" + 300 * "0", "it must be less than or equal to 2147483647"),
        ("rollout.n=1" + 20 * "0", "`n` is 100000000000000000000; it must be less than or equal to 2147483647"),
        ("rollout.prompts=1000000000", "`prompts` times `n` is 8,000,000,000 responses per step"),
        ("task.settings.train=1" + 20 * "0", "train is too large"),
        (
            'task.settings.prompt_format="{numbers.__class__}"',
            "prompt_format has a field that is not allowed: {numbers.__class__}",
        ),
        ('task.settings.prompt_format="{target[0]}"', "prompt_format has a field that is not allowed: {target[0]}"),
        (
            'task.settings.prompt_format="{target:>9999999999}"',
            "prompt_format has a field that is not allowed: {target:>9999999999}",
        ),
        ('task.settings.prompt_format="{target!r}"', "prompt_format has a field that is not allowed: {target!r}"),
        ('task.settings.prompt_format="{"', "prompt_format is not a valid format"),
        ("task.settings.prompt_format=3", "prompt_format=3 is not text"),
    ],
)
def test_config_check_finds_what_training_would_fail_on(egpo, override, said):
    code, lines = egpo("config", "check", RECIPE, override)
    assert (code, len(lines)) == (2, 1)
    assert said in lines[0]


def test_faults_of_the_task_come_with_those_of_the_schema(egpo):
    code, lines = egpo("config", "check", RECIPE, "task.name=nope", "steps=0")
    assert (code, len(lines)) == (2, 2)


def test_a_task_to_evaluate_on_is_checked_as_well(egpo):
    Path("a.yaml").write_text(f"include: {RECIPE}\neval: {{tasks: [{{name: nope}}]}}\n")
    code, lines = egpo("config", "check", "a.yaml")
    assert code == 2
    assert "a.yaml:2 [eval.tasks]: unknown task `nope`" in lines[0]


def test_plain_fields_and_doubled_braces_are_a_prompt_format():
    from egpo.tasks import load_task

    task = load_task("countdown", prompt_format="{{{target}}} from {numbers}", train=1, test=1)
    assert task.problems("test")[0].messages[0]["content"].startswith("{")


def test_includes_that_fan_out_are_read_once_each(egpo, monkeypatch):
    """Forty files that each include the next one twice were read 2^40 times."""
    for i in range(40):
        next_file = f"f{i + 1}.yaml" if i < 39 else RECIPE
        Path(f"f{i}.yaml").write_text(f"include: [{next_file}, {next_file}]\nseed: {i}\n")
    reads, read = [], includes._read

    def counted(path, kind):
        reads.append(path)
        assert len(reads) < 1_000, "files are read again and again"
        return read(path, kind)

    monkeypatch.setattr(includes, "_read", counted)
    assert includes.read_layers(Path("f0.yaml")).value["seed"] == 0
    assert len(reads) == 40 + 2, "and the recipe with its part"


def test_a_chain_of_includes_that_never_ends_is_a_fault(tmp_path):
    for i in range(2_000):
        (tmp_path / f"f{i}.yaml").write_text(f"include: f{i + 1}.yaml\n")
    with pytest.raises(ConfigError, match="more than 50 files include each other in a chain"):
        includes.read_layers(tmp_path / "f0.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "include: ~nosuchuser/x",
            "`include` has the invalid path '~nosuchuser/x'; it must be a path that exists: no home folder is known",
        ),
        (f"include: {LONG}", "a path of 2,048 bytes at most (this one has 5,000)"),
        (f"include: {'y' * 300}", "a path whose names have 255 bytes at most (one has 300)"),
        ('include: "a\\0b"', r"`include` has the invalid path 'a\x00b'; it must be a path without NUL characters"),
        ('runs: "a\\0b"', r"`runs` is 'a\x00b'; it must be a path without NUL characters"),
        ('model: {path: "a\\0b"}', "it must be a path without NUL characters"),
        ('prepare: {source: "a\\0b"}', "it must be a path without NUL characters"),
        ('prepare: {folder: "a\\0b"}', "it must be a path without NUL characters"),
        ('task: {settings: {source: "a\\0b"}}', "it must be a path without NUL characters"),
        ('verl: {python: "a\\0b"}', "it must be a path without NUL characters"),
        ('runs: "\\uD800"', "a.yaml"),
    ],
)
def test_a_path_that_no_system_can_open_is_one_line(egpo, text, said):
    base = "" if text.startswith("include") else f"include: {RECIPE}\n"
    Path("a.yaml").write_text(f"{base}{text}\n")
    for verb in (["config", "check"], ["train", "--dry-run"], ["run", "--dry-run"], ["config", "show"], ["plan"]):
        if text.startswith("task:") and verb in (["config", "show"], ["plan"]):
            continue  # these two do not load the task
        code, lines = egpo(*verb, "a.yaml")
        assert (code, len(lines)) == (2, 1), verb
        assert said in lines[0]


@pytest.mark.parametrize(
    "words",
    [
        [LONG],
        [f"model.path={LONG}"],
        [RECIPE, f"runs={LONG}"],
        [RECIPE, f"name={LONG}"],
        [RECIPE, f"model.path={LONG}"],
        [RECIPE, "model.path=~nosuchuser/x"],
        [RECIPE, f"prepare.source={LONG}"],
        [RECIPE, f"task.name={LONG}"],
        [RECIPE, f"task.name={LONG}:Task"],
        [RECIPE, f"task.name={LONG}.py:Task"],
        [RECIPE, f"task.settings.source={LONG}"],
        [RECIPE, f"{LONG}=3"],
    ],
    ids=lambda words: " ".join(words)[-5_040:][:30],
)
def test_names_of_5000_characters_are_faults(egpo, words):
    for verb in (["config", "check"], ["train", "--dry-run"], ["run", "--dry-run"]):
        if words[-1].endswith(":Task") and verb[0] == "run":
            continue  # a dry run does not import a task from outside
        code, lines = egpo(*verb, *words)
        assert code == 2, verb
        assert lines
        assert all(line.startswith("egpo: ") for line in lines)


@pytest.mark.parametrize("name", ["~nosuchuser/x", LONG])
def test_a_machine_file_that_cannot_be_opened_is_one_line(egpo, monkeypatch, name):
    monkeypatch.setenv("EGPO_MACHINE", name)
    code, lines = egpo("config", "check", RECIPE)
    assert (code, len(lines)) == (2, 1)
