"""`egpo prepare` as a user meets it."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from egpo.cli.prepare import VERBS, prepare_app
from egpo.errors import InputError


def run(*words):
    return CliRunner().invoke(prepare_app, [str(word) for word in words], env={"COLUMNS": "120"})


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_prepares_and_shows_an_example(tmp_path, verb):
    done = run(verb, "--out", tmp_path / "out", "--train", 6, "--test", 3, "--seed", 1)
    assert done.exit_code == 0, done.output
    assert "train.parquet" in done.output
    more = {"bfcl": {"unseen.parquet"}}.get(verb, set())
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"manifest.json", "test.parquet", "train.parquet", *more}
    assert f"egpo prepare {verb}" in run(verb, "--help").output


def test_json_goes_to_stdout_and_agrees_with_the_manifest(tmp_path):
    done = run("countdown", "--out", tmp_path / "out", "--train", 6, "--test", 3, "--json")
    told = json.loads(done.stdout)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert told["files"] == manifest["files"]
    assert told["files"]["train.parquet"]["rows"] == 6


def test_dropped_rows_are_shown_with_their_meaning(tmp_path):
    rows = [{"target": 3, "nums": [1, 2]}, {"target": 3, "nums": [2, 1]}, {"target": 5, "nums": [2, 3]}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    done = run("countdown", "--out", tmp_path / "out", "--source", tmp_path / "rows.json", "--train", 1, "--test", 1)
    assert "in_other_split" in done.output
    assert "the same problem is in the other split" in done.output


def test_other_data_is_refused_and_force_replaces_it(tmp_path):
    words = ("gsm8k", "--out", tmp_path, "--train", 6, "--test", 3)
    assert run(*words).exit_code == 0
    refused = run(*words)
    assert isinstance(refused.exception, InputError)
    assert "already holds" in str(refused.exception)
    assert run(*words, "--force", "--seed", 2).exit_code == 0
    assert json.loads((tmp_path / "manifest.json").read_text())["seed"] == 2


def test_two_processes_with_other_hash_seeds_and_folders_write_the_same_bytes(tmp_path):
    digests = set()
    for seed in ("1", "2"):
        code = (
            "from egpo.cli.prepare import prepare_app\n"
            f"prepare_app(['function-calling', '--out', {str(tmp_path / seed)!r}, '--train', '40', '--test', '9'])"
        )
        env = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
        digests.add(
            tuple((tmp_path / seed / name).read_bytes() for name in ("train.parquet", "test.parquet", "manifest.json"))
        )
    assert len(digests) == 1


def test_help_is_light():
    code = (
        "import sys\nfrom egpo.cli.prepare import prepare_app\nfrom egpo.cli.convert import convert_app\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'numpy', 'egpo.data', 'egpo.tasks'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
