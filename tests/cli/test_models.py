"""What every verb says of a model that it cannot use: one line, exit code 2, and no question to the hub."""

import errno
import json
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from egpo.assets import resolve_model
from egpo.cli.main import main
from tests.waiting import without_heartbeats

TINY = Path(resolve_model("egpo-tiny"))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def words_of(verb, model, tmp_path):
    task = ["--task", "countdown"]
    return {
        "eval": ["eval", model, *task, "--n", "1", "--problems", "2", "--max-tokens", "8"],
        "probe": ["probe", "--model", model, *task, "--n", "2", "--problems", "2", "--max-tokens", "8"],
        "train": ["train", str(EXAMPLES / "recipe.yaml"), f"model.path={model}", "steps=1"],
        "dry run": ["train", str(EXAMPLES / "recipe.yaml"), f"model.path={model}", "--dry-run"],
        "sft": ["sft", "cold_start", f"model.path={model}"],
        "serve": ["serve", model, "--port", "0"],
        "bfcl": ["eval", "bfcl", model, "--cases", "1", "--categories", "simple_python", "--offline"],
    }[verb]


VERBS = ("eval", "probe", "train", "dry run", "sft", "serve", "bfcl")


@pytest.fixture
def egpo(tmp_path, monkeypatch, capsys):
    """Runs a verb in an empty folder; whoever would ask the hub fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EGPO_MACHINE", "")
    asked = []
    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", lambda *a, **k: asked.append(a) or 1 / 0)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["egpo", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert asked == []
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("verb", VERBS)
def test_a_path_that_leads_nowhere_is_not_asked_of_the_hub(egpo, tmp_path, verb):
    (tmp_path / "runs" / "typos").mkdir(parents=True)
    code, said = egpo(*words_of(verb, "runs/typo", tmp_path))
    assert code == 2
    assert "egpo: model runs/typo: no such folder; did you mean `runs/typos`?\n" in said
    assert "Traceback" not in said


@pytest.fixture
def model(tmp_path):
    """A copy of the tiny model, to be broken."""
    folder = tmp_path / "broken"
    shutil.copytree(TINY, folder)
    return folder


LOADING = tuple(verb for verb in VERBS if verb not in ("serve", "bfcl"))
"""Verbs that load weights themselves, and not in a server."""


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("config", "what"),
    [
        ([], "the model's config.json contains a list, not an object"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` in the model's config.json is 0"),
    ],
)
def test_a_broken_config_is_one_line(egpo, model, tmp_path, verb, config, what):
    path = model / "config.json"
    path.write_text(json.dumps(config if isinstance(config, list) else json.loads(path.read_text()) | config))
    code, said = egpo(*words_of(verb, str(model), tmp_path))
    assert code == 2
    assert f"egpo: model {model}: {what}; " in said
    assert "Traceback" not in said


class Attack:
    def __reduce__(self):
        return exec, ("open('executed', 'w')",)


@pytest.mark.parametrize("verb", LOADING)
def test_weights_that_are_a_pickle_are_not_executed_and_are_one_line(egpo, model, tmp_path, verb):
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Attack()}))
    code, said = egpo(*words_of(verb, str(model), tmp_path))
    assert code == 2
    assert "loading it could run code" in said
    assert "Traceback" not in said
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("words", [["--help"], ["results", "runs", "--json"], ["--version"]])
def test_a_full_device_as_standard_output_is_one_line(tmp_path, words):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    command = [sys.executable, "-m", "egpo", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.returncode == 1
    last = "egpo: standard output cannot be written (No space left on device); free some space, or write elsewhere"
    assert done.stderr.splitlines()[-1] == last
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize("filename", ["runs/a/provenance.json", None])
def test_a_file_that_the_system_refuses_is_one_line(monkeypatch, capsys, filename):
    """Whatever writes it: a full disk under a file is not taken for a full standard output."""

    def refuse():
        raise OSError(errno.EROFS, "Read-only file system", filename)

    monkeypatch.setattr("egpo.cli.main.app", refuse)
    monkeypatch.setattr("sys.argv", ["egpo", "doctor"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(
        f"egpo: {filename or 'a file'}: the system refused it (Read-only file system); free some space"
    )


def test_too_little_address_space_is_one_line(tmp_path):
    """400 MiB: Python starts, and torch cannot be mapped."""
    command = [sys.executable, "-m", "egpo", *words_of("eval", "egpo-tiny", tmp_path)]
    limit = 400 * 2**20
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 1
    first, line = without_heartbeats(done.stderr)
    assert first == "loading egpo-tiny ..."
    assert line.startswith("egpo: not enough memory (")
