"""The wheel alone: built, installed outside the clone, and used in an empty folder.

torch and the other dependencies come from this environment, by a `.pth` file; egpo itself only from the wheel.
"""

import json
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from egpo.recipes import recipe_names

ROOT = Path(__file__).parents[1]
pytest.importorskip("build")
pytest.importorskip("hatchling")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def egpo(wheel, tmp_path_factory):
    """A function that runs `egpo` of the installed wheel in an empty folder, and returns the finished process."""
    home = tmp_path_factory.mktemp("outside")
    venv.create(home / "venv", with_pip=False)
    python = home / "venv" / "bin" / "python"
    (place,) = (home / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    (place / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    start = "from egpo.cli.main import main; main()"
    (home / "empty").mkdir()

    def run(*words):
        # -P: the working directory is not on the path. The clone's editable install is found after the wheel.
        command = [str(python), "-P", "-c", start, *words]
        return subprocess.run(command, cwd=home / "empty", capture_output=True, text=True, check=False)

    run.folder, run.python = home / "empty", python
    return run


def test_the_wheel_holds_the_recipes_and_the_model(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"egpo/recipes/{name}.yaml" for name in recipe_names()} <= set(names)
    assert "egpo/recipes/parts/tiny.yaml" in names
    assert any(name.startswith("egpo/assets/egpo-tiny/") and name.endswith(".safetensors") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "docs/", "examples/"))]


def test_the_package_that_runs_is_that_of_the_wheel(egpo):
    code = "import egpo; print(egpo.__file__)"
    done = subprocess.run([egpo.python, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert str(ROOT) not in done.stdout


def test_recipes_are_listed_and_a_new_one_is_written(egpo):
    assert "countdown_tiny" in egpo("recipes").stdout
    made = egpo("new", "mine")
    assert (made.returncode, made.stdout) == (0, "mine.yaml\n")
    assert egpo("config", "check", "mine.yaml").returncode == 0


@pytest.mark.timeout(900)
def test_a_recipe_trains_by_its_name(egpo):
    small = ["steps=1", "rollout.prompts=2", "rollout.n=2", "validation.problems=2", "name=by-name"]
    done = egpo("train", "countdown_tiny", *small, "--json")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["step"] for line in done.stdout.splitlines()] == [0, 1]
    assert (egpo.folder / "runs" / "by-name" / "metrics.jsonl").is_file()


@pytest.mark.timeout(1800)
def test_the_fast_demo_runs(egpo):
    done = egpo("demo", "--fast")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (egpo.folder / "runs" / "demo-fast" / "report.html").is_file()


@pytest.mark.parametrize("words", [["doctor"], ["train", "nothing"], ["new", "x", "--from", "nothing"], ["--help"]])
def test_advice_outside_a_clone_names_nothing_of_the_clone(egpo, words):
    done = egpo(*words)
    shown = done.stdout + done.stderr
    assert "examples/" not in shown
    assert not re.search(r"\bmake (verl|demo|env|test)\b", " ".join(shown.split()))
