"""Imports point one way, between packages and within `local`, and what must start fast imports little."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import egpo

SOURCE = Path(egpo.__file__).parent
LEAVES = {
    "assets",
    "benchmark_cases",
    "call_bounds",
    "chat_templates",
    "chat_turns",
    "errors",
    "files",
    "fingerprints",
    "gpus",
    "heartbeat",
    "model_sources",
    "native",
    "processes",
    "recipes",
    "sections",
    "support",
    "tags",
    "tool_calls",
    "user_code",
    "version",
    "waits",
}
MAY_IMPORT = {
    "assets": set(),
    "errors": set(),
    "methods": set(),
    "version": set(),
    "recipes": set(),
    "tags": set(),
    "support": set(),
    "call_bounds": set(),
    "files": set(),
    "fingerprints": set(),
    "benchmark_cases": {"errors", "files"},
    "gpus": {"errors", "processes"},
    "heartbeat": set(),
    "waits": {"errors"},
    "chat_templates": {"errors", "waits"},
    "chat_turns": {"chat_templates", "errors", "tags"},
    "model_sources": {"assets", "chat_templates", "errors", "files", "fingerprints", "processes", "waits"},
    "sections": {"errors", "files"},
    "user_code": {"errors", "files"},
    "native": {"errors", "files", "processes"},
    "processes": {"errors", "files", "waits"},
    "tool_calls": {"call_bounds", "errors"},
    "__main__": {"cli"},
    "api_results": LEAVES | {"runs", "comparisons", "evals", "probes"},
    "api_inputs": LEAVES | {"api_results", "config", "runs", "tasks"},
    "api": LEAVES
    | {
        "api_inputs",
        "api_results",
        "config",
        "tasks",
        "runs",
        "engines",
        "cold_starts",
        "local",
        "evals",
        "probes",
        "comparisons",
    }
    | {"reports"},
    "config": LEAVES | {"advantages", "controllers", "filters", "losses"},
    "rewards": LEAVES,
    "segments": LEAVES,
    "advantages": LEAVES,
    "losses": LEAVES,
    "controllers": LEAVES,
    "filters": LEAVES | {"advantages"},
    "token_stats": LEAVES,
    "data": LEAVES,
    "runs": LEAVES,
    "reports": LEAVES | {"runs", "evals", "comparisons"},
    "environments": LEAVES | {"config", "rewards"},
    "tasks": LEAVES | {"rewards", "data", "environments"},
    "machine_checks": LEAVES | {"rewards"},
    "audits": LEAVES | {"config", "environments", "tasks", "rewards", "data"},
    "local": LEAVES
    | {"config", "environments", "tasks", "rewards", "data", "runs"}
    | {"advantages", "controllers", "filters", "losses", "segments", "token_stats"},
    "evals": LEAVES | {"config", "environments", "tasks", "rewards", "runs", "local", "serving"},
    "probes": LEAVES | {"config", "tasks", "data", "runs", "local", "evals", "reports"},
    "demos": LEAVES | {"advantages", "config", "runs", "evals", "probes", "plans", "reports", "experiments"},
    "verl": LEAVES
    | {"config", "environments", "tasks", "rewards", "advantages", "controllers", "losses", "segments", "data", "runs"}
    | {"serving", "plans"},
    "trl": LEAVES | {"advantages", "segments"},
    "merges": LEAVES | {"config", "data", "runs", "local"},
    "pushes": LEAVES | {"runs", "merges", "local"},
    "comparisons": LEAVES | {"data", "runs", "evals", "methods"},
    "boards": LEAVES | {"config", "runs", "evals", "comparisons", "reports", "experiments", "methods"},
    "serving": LEAVES | {"config"},
    "plans": LEAVES | {"config"},
    "prepared_data": LEAVES | {"config", "data", "tasks"},
    "cold_starts": LEAVES | {"config", "tasks", "rewards", "prepared_data", "local"},
    "engines": LEAVES | {"config", "local", "runs", "verl"},
    "experiments": LEAVES
    | {
        "config",
        "tasks",
        "data",
        "runs",
        "cold_starts",
        "prepared_data",
        "engines",
        "verl",
        "evals",
        "probes",
        "reports",
        "merges",
        "comparisons",
        "serving",
    },
}
LOCAL_LAYERS = (
    ("draws", "memory", "progress_bars"),
    ("models",),
    ("rollouts", "threads"),
    ("sampling",),
    ("updates",),
    ("run",),
    ("collect",),
    ("measure",),
    ("summarise", "validate"),
    ("step",),
    ("checkpoints",),
    ("training",),
    ("sft", "train"),
)
"""The modules and subpackages of `local`, lowest first: each imports from lower layers and from itself only."""
NOT_LAYERED_YET: set[tuple[str, str]] = set()
LIGHT = ["torch", "transformers", "numpy", "pyarrow", "math_verify"]


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module


def imported_parts(path):
    return {name.split(".")[1] for name in imported_modules(path) if name.startswith("egpo.")}


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_imports_point_one_way(part):
    files = [SOURCE / f"{part}.py", *(SOURCE / part).rglob("*.py")]
    for path in files:
        if path.exists():
            strangers = set(imported_parts(path)) - MAY_IMPORT[part] - {part}
            assert not strangers, f"{path} imports {strangers}"


def test_local_is_layered():
    layer_of = {part: height for height, parts in enumerate(LOCAL_LAYERS) for part in parts}
    folder = SOURCE / "local"
    assert {path.stem for path in folder.iterdir() if path.stem not in ("__init__", "__pycache__")} == set(layer_of)
    for path in folder.rglob("*.py"):
        part = path.relative_to(folder).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        modules = (node for node in imported_modules(path) if node.startswith("egpo.local."))
        for other in {module.split(".")[2] for module in modules} - {part}:
            is_lower = layer_of[other] < layer_of[part]
            assert is_lower or (part, other) in NOT_LAYERED_YET, f"{path} imports {other}, which is not a lower layer"


def test_every_part_has_its_rule():
    parts = {
        path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py")))
    }
    assert parts - {"__init__", "cli"} == {part for part in MAY_IMPORT if part in parts}


def modules_after(*command):
    """What is in sys.modules once a command of ours has run."""
    code = (
        "import sys, runpy\n"
        f"sys.argv = {['egpo', *command]!r}\n"
        "try:\n    from egpo.cli.main import main; main()\nexcept SystemExit: pass\n"
        "sys.stderr.write('\\nMODULES ' + ' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    return set(done.stderr.split("MODULES ")[-1].split())


@pytest.mark.parametrize("command", [("--help",), ("--version",), ("config", "--help"), ("doctor", "--help"), ()])
def test_help_imports_nothing_heavy(command):
    assert not modules_after(*command) & set(LIGHT)


def test_checking_a_recipe_imports_neither_torch_nor_transformers():
    recipe = str(Path(__file__).parents[1] / "examples" / "recipe.yaml")
    assert not modules_after("config", "show", recipe) & {"torch", "transformers", "numpy"}
    # The check makes the task, whose data layer needs numpy.
    assert not modules_after("config", "check", recipe) & {"torch", "transformers"}


def test_import_egpo_is_free_and_its_index_is_whole():
    code = "import sys, egpo; assert 'torch' not in sys.modules; [getattr(egpo, name) for name in egpo.__all__]"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError):
        _ = egpo.nothing


def test_no_banned_words_in_file_and_function_names():
    banned = {"utils", "helpers", "common", "misc"}
    assert not [path for path in SOURCE.rglob("*") if path.stem in banned]
    functions = [
        f"{path}:{node.name}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and re.match(r"_?(get|do|maybe)_|.*(Manager|Handler)$", node.name)
    ]
    # Names that a protocol of the standard library, or of verl or TRL, prescribes.
    prescribed = (":do_GET", ":do_POST", "platform.py:get_device_capability", "device_module.py:get_device_name")
    prescribed += ("trl.py:_get_per_token_logps_and_entropies",)
    assert [name for name in functions if not name.endswith(prescribed)] == []


def test_nothing_evaluates_text():
    """`eval` and `exec` stand nowhere but inside the sandbox, where candidate programs run."""
    found = [
        path.relative_to(SOURCE)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}
    ]
    assert all(path.parts[:3] == ("rewards", "sandbox", "inside") for path in found), found


def test_one_module_renders_chat_templates():
    """The others ask it, so that every rendering has its limits. BFCL's driver runs where egpo is not installed."""
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
        and getattr(node, "attr", getattr(node, "id", "")) in {"apply_chat_template", "render_jinja_template"}
    }
    assert found == {"chat_templates.py", "evals/bfcl/inside/template_handler.py"}


REPEATED = {
    "train.py": "one for the command, one for each engine: the same verb",
}
"""File stems and public classes that occur in three packages, with the reason."""


def test_no_name_in_three_packages():
    packages = {}
    for path in SOURCE.rglob("*.py"):
        names = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)}
        names = {name for name in names if not name.startswith("_")}
        for name in names | ({path.name} - {"__init__.py"}):
            packages.setdefault(name, set()).add(path.parent.relative_to(SOURCE))
    assert {name for name, found in packages.items() if len(found) > 2} == set(REPEATED)


def test_every_package_has_a_map():
    """A package of three modules or more says in its docstring what each of them does."""
    for init in SOURCE.rglob("__init__.py"):
        modules = [path.name for path in init.parent.glob("*.py") if path.name != "__init__.py"]
        docstring = ast.get_docstring(ast.parse(init.read_text())) or ""
        missing = [name for name in modules if name not in docstring and name.removesuffix(".py") not in docstring]
        assert len(modules) < 3 or init.parent == SOURCE or not missing, f"{init}: {missing}"
