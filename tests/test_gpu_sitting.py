"""The sitting on a GPU: parts that fail or hang do not stop the others, and every command names what exists."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import gpu_sitting  # noqa: E402
from gpu_sitting import PARTS, Part, read_outcomes, run_parts  # noqa: E402

FAKES = {
    "good": Part("{python} -c \"print('a table')\" && touch OUT/left", 60, "a page"),
    "bad": Part("{python} -c 'raise SystemExit(3)'", 60, "a page"),
    "hangs": Part("sleep 600 & wait", 1, "a page"),
    "last": Part("echo fine", 60, "a page"),
    "long": Part("echo never", 6000, "a page"),
}


def test_a_part_that_fails_or_hangs_does_not_stop_the_others(tmp_path, capsys):
    left_out = run_parts(list(FAKES), tmp_path, 5, FAKES)
    outcomes = read_outcomes(tmp_path)
    assert {name: one.code for name, one in outcomes.items()} == {"good": 0, "bad": 3, "hangs": None, "last": 0}
    assert outcomes["good"].last == "a table"
    assert (tmp_path / "left").exists()
    assert set(left_out) == {"long"}
    assert "may take 6000 s" in left_out["long"]
    gpu_sitting.show(tmp_path, left_out, FAKES)
    said = capsys.readouterr().out
    assert "over its time limit" in said
    assert "failed with exit code 3" in said


def test_nothing_that_a_part_started_is_left(tmp_path):
    run_parts(["hangs"], tmp_path, 5, {"hangs": Part("sleep 5417 & wait", 1, "")})
    assert subprocess.run(["pgrep", "-f", "sleep 541[7]"], check=False).returncode == 1


def test_the_same_command_continues_with_what_is_missing(tmp_path):
    run_parts(["good", "bad"], tmp_path, 5, FAKES)
    run_parts(["bad"], tmp_path, 5, {"bad": FAKES["good"]})
    assert all(one.is_done for one in read_outcomes(tmp_path).values())


PARSED = """
import argparse, importlib, json, sys
class Parsed(Exception): pass
def parse(parser, *words):
    known(parser, *words)
    raise Parsed
known, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, parse
for name, *words in json.loads(sys.argv[1]):
    sys.argv = [name, *words]
    try:
        importlib.import_module(name).main()
    except Parsed:
        print(name)
"""


def test_every_command_is_one_that_its_script_accepts(tmp_path):
    """In one process, which imports each script once."""
    commands = {
        name: shlex.split(part.command.replace("{python}", "python").replace("OUT", str(tmp_path)))
        for name, part in PARTS.items()
    }
    subprocess.run([*commands.pop("tests"), "--dry-run"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    modules = [
        [words[2], *words[3:]] if words[1] == "-m" else [Path(words[1]).stem, *words[2:]] for words in commands.values()
    ]
    path = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", PARSED, json.dumps(modules)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.stdout.split() == [words[0] for words in modules], done.stderr


def test_the_parts_are_listed_without_a_gpu():
    script = str(ROOT / "benchmarks" / "gpu_sitting.py")
    listed = subprocess.run([sys.executable, script, "--list"], capture_output=True, text=True, check=True).stdout
    assert all(name in listed for name in PARTS)
    refused = subprocess.run([sys.executable, script, "nothing"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "no part is called nothing" in refused.stderr
