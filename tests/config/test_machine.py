"""What belongs to the machine: found, checked whole, and never in a recipe."""

import os
import sys

import pytest

from egpo.config import load_config
from egpo.config.machine import (
    NAME,
    VARIABLE,
    Machine,
    data_place,
    machine_file,
    model_folder,
    require_model_place,
    this_machine,
)
from egpo.errors import ConfigError, InputError

VERL = ["model.path=m", "task.name=countdown", "engine=verl"]


@pytest.fixture(autouse=True)
def _nowhere(tmp_path, monkeypatch):
    """A working directory and a home without a machine file."""
    for name in ("here", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    def write(text):
        path = tmp_path / "machine.yaml"
        path.write_text(text)
        monkeypatch.setenv(VARIABLE, str(path))
        return path

    return write


def faults():
    with pytest.raises(ConfigError) as caught:
        load_config(None, VERL)
    return [str(fault) for fault in caught.value.faults]


def model_at(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")


def test_a_machine_without_a_file_knows_nothing():
    assert machine_file() is None
    assert this_machine() == Machine()


def test_the_variable_goes_before_the_working_directory_and_that_before_the_home(tmp_path, monkeypatch):
    for number, path in enumerate([tmp_path / "home/.config/egpo" / NAME, tmp_path / "here" / NAME, tmp_path / "x"], 1):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"gpus: {number}\n")
        if path.name == "x":
            monkeypatch.setenv(VARIABLE, str(path))
        assert this_machine().gpus == number
    monkeypatch.setenv(VARIABLE, "")
    assert this_machine().gpus is None


def test_gpus_and_nodes_are_the_machines_unless_somebody_says(machine):
    machine("gpus: 8\nnodes: 2\n")
    verl = load_config(None, VERL).verl
    assert (verl.gpus, verl.nodes) == (8, 2)
    verl = load_config(None, [*VERL, "verl.gpus=4"]).verl
    assert (verl.gpus, verl.nodes) == (4, 2)


def test_neither_the_local_engine_nor_a_cpu_has_the_machines_gpus(machine):
    words = [VERL[:2], [*VERL, "verl.device=cpu"]]
    before = [load_config(None, given) for given in words]
    machine("gpus: 8\n")
    assert [load_config(None, given) for given in words] == before


def test_models_are_found_under_their_roots_by_either_name(machine, tmp_path):
    model_at(tmp_path / "roots/a/Qwen/Qwen3-4B")
    model_at(tmp_path / "roots/b/Qwen3-8B")
    machine("models: [roots/a, roots/b]\n")
    assert model_folder("Qwen/Qwen3-4B") == str(tmp_path / "roots/a/Qwen/Qwen3-4B")
    assert model_folder("Qwen/Qwen3-8B") == str(tmp_path / "roots/b/Qwen3-8B")
    assert model_folder("Qwen/Qwen3-32B") == "Qwen/Qwen3-32B"
    assert model_folder("egpo-tiny").endswith("assets/egpo-tiny")


def test_a_folder_in_front_of_the_user_goes_before_the_roots(machine, tmp_path):
    model_at(tmp_path / "here/m")
    model_at(tmp_path / "root/m")
    machine("models: [root]\n")
    assert model_folder("m") == "m"


def test_data_is_found_under_its_roots(machine, tmp_path):
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "raw.jsonl").write_text("{}")
    machine("data: [sets]\n")
    assert data_place("raw.jsonl") == str(tmp_path / "sets" / "raw.jsonl")
    assert data_place("openai/gsm8k") == "openai/gsm8k"
    (tmp_path / "here" / "raw.jsonl").write_text("{}")
    assert data_place("raw.jsonl") == "raw.jsonl"


def test_an_interpreter_is_called_by_its_own_name(machine, tmp_path):
    """A link that was followed would be the python of another environment."""
    (tmp_path / "env").mkdir()
    os.symlink(sys.executable, tmp_path / "env" / "python")
    machine("environments: {verl: env/python}\n")
    assert this_machine().environments.verl == str(tmp_path / "env" / "python")


def test_every_wrong_path_is_named_with_its_line(machine, tmp_path):
    path = machine("models:\n  - nowhere\ndata: [nothing]\nenvironments:\n  verl: none/python\n  bfcl: .\n")
    assert faults() == [
        f"{path}:1: the folder {tmp_path}/nowhere of `models` does not exist; correct the path, or leave it out",
        f"{path}:3: the folder {tmp_path}/nothing of `data` does not exist; correct the path, or leave it out",
        f"{path}:5 [environments]: `verl` names {tmp_path}/none/python, which is not an interpreter; "
        "give the path of a Python interpreter, such as /opt/verl/bin/python",
        f"{path}:6 [environments]: `bfcl` names {tmp_path}, which is not an interpreter; "
        "give the path of a Python interpreter, such as /opt/verl/bin/python",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("gpus: 0\n", ":1: `gpus` is 0; it must be greater than or equal to 1"),
        ("modles: [x]\n", ":1: unknown key `modles`; did you mean `models`?"),
        ("environments: {vrl: x}\n", "unknown key `vrl`; did you mean `verl`?"),
        ("", "the machine file is empty"),
        ("- a\n", "the machine file is a list"),
        ("gpus: [\n", "not YAML"),
    ],
)
def test_a_wrong_machine_file_is_a_clear_error(machine, text, fault):
    path = machine(text)
    (found,) = faults()
    assert str(path) in found
    assert fault in found


def test_a_variable_that_names_no_file(monkeypatch):
    monkeypatch.setenv(VARIABLE, "/nowhere/machine.yaml")
    with pytest.raises(InputError, match=r"EGPO_MACHINE: the machine file `/nowhere/machine.yaml` does not exist"):
        load_config(None, VERL)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-4B", "gpt2", "a/b.c_d-e", "Qwen/runs"])
def test_a_name_that_may_be_of_the_hub_stays_as_it_is(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert require_model_place(name, "here") == name


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("runs/typo", "did you mean `runs/typos`?"),
        ("./typo", "check the path: there is no `typo` in {here}"),
        ("models/thing", "check the path: there is no `thing` in {here}/models"),
        ("models/frst/checkpoints", "did you mean `models/first/checkpoints`?"),
        ("runs/a", "check the path: there is no `a` in {here}/runs"),
        ("run/typos/x", "did you mean `runs/typos/x`?"),
        ("a/b/c", "check the path: there is no `a` in {here}"),
        ("a b", "check the path: there is no `a b` in {here}"),
        ("egpo-tinny", "did you mean `egpo-tiny`?"),
    ],
)
def test_a_path_is_a_path(name, advice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/typos", "models/first"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(InputError) as caught:
        require_model_place(name, "here")
    assert str(caught.value) == f"here: no such folder; {advice.format(here=tmp_path)}"


def test_a_file_is_no_model_folder(tmp_path):
    (tmp_path / "weights.bin").touch()
    with pytest.raises(InputError, match="is a file, not a model folder"):
        require_model_place(str(tmp_path / "weights.bin"), "here")
