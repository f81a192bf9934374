"""Measure the shape of the source: file and function lengths, repeated names, and files per code path.

    .venv/bin/python benchmarks/source_shape.py                       this checkout
    .venv/bin/python benchmarks/source_shape.py --root ../old --json  another checkout, with this interpreter
    .venv/bin/python benchmarks/source_shape.py --verl .env-verl/bin/python   trace a real verl launch as well (minutes)

`hops` counts the distinct files of src/egpo in which a function runs between the call of one named function and its
return (`sys.settrace`, all threads; what runs while a module is imported does not count). The four paths: one training
step on a CPU, one tool-call reward, one `egpo eval`, one launch of verl (without --verl: its dry run).
"""

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

TRACER = """
import json, os, sys, threading
root, file, name, out = sys.argv[1:5]
del sys.argv[1:5]
files, inside = set(), []
def importing(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename != "<string>":
            return True
        frame = frame.f_back
    return False
def trace(frame, event, argument):
    code = frame.f_code
    path = code.co_filename
    if not path.startswith(root):
        return None
    if not inside and path == os.path.join(root, file) and code.co_name == name:
        inside.append(frame)
        def leave(frame, event, argument):
            if event == "return":
                inside.clear()
                sys.settrace(None)
                threading.settrace(None)
            return leave
        files.add(path)
        return leave
    if inside and path not in files and not path.endswith("__init__.py") and not importing(frame):
        files.add(path)
    return None
threading.settrace(trace)
sys.settrace(trace)
try:
    CODE
except SystemExit:
    pass
finally:
    sys.settrace(None)
    with open(out, "w") as stream:
        json.dump(sorted(os.path.relpath(path, root) for path in files), stream)
"""
COMMAND = "import sys\n    sys.argv = ['egpo', *sys.argv[1:]]\n    from egpo.cli.main import main\n    main()"
REWARD = (
    "from egpo.rewards import score\n"
    '    call = \'<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\'\n'
    "    truth = [{'name': 'f', 'arguments': {'a': 1}}]\n"
    "    verdict = score('function_calling', '<think>a</think>' + call, truth, {'mode': 'strict_think'})\n"
    "    assert verdict.reward == 1.0, verdict"
)
SMALL = ("steps=1", "rollout.prompts=2", "rollout.n=4", "validation.every=0", "checkpoints.every=1")


@dataclass(frozen=True)
class Lengths:
    """Median, 90th percentile and maximum, in lines."""

    median: float
    p90: float
    max: int


@dataclass(frozen=True)
class Shape:
    """The figures of one checkout."""

    files: int
    lines: int
    file_lines: Lengths
    function_lines: Lengths
    names_in_three_packages: dict[str, list[str]]
    """Class names and file stems that occur in three or more packages, with the packages."""
    hops: dict[str, list[str]]
    """Per code path, the files in which a function ran."""


def lengths(values: list[int]) -> Lengths:
    return Lengths(statistics.median(values), statistics.quantiles(values, n=10)[-1], max(values))


def repeated_names(source: Path) -> dict[str, list[str]]:
    packages = defaultdict(set)
    for path in source.rglob("*.py"):
        package = str(path.parent.relative_to(source))
        if path.stem != "__init__":
            packages[f"{path.stem}.py"].add(package)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                packages[node.name].add(package)
    return {name: sorted(found) for name, found in sorted(packages.items()) if len(found) >= 3}


def traced(root: Path, python: str, file: str, name: str, code: str, *words: str) -> list[str]:
    """Run `code` under the tracer and return the files that were passed through."""
    source = root / "src" / "egpo"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "files.json")
        command = [python, "-c", TRACER.replace("CODE", code), f"{source}{os.sep}", file, name, str(out), *words]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(root / "src"), "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
        )
        files = json.loads(out.read_text()) if out.exists() else []
        if not files:
            raise SystemExit(f"{file}:{name} was not called:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return files


def hops(root: Path, verl_python: str | None) -> dict[str, list[str]]:
    recipe = "countdown_tiny"
    on_verl = ["train", recipe, "engine=verl", "verl.device=cpu", *SMALL, *([] if verl_python else ["--dry-run"])]
    return {
        "training step": traced(root, sys.executable, "local/step.py", "step", COMMAND, "train", recipe, *SMALL),
        "tool-call reward": traced(root, sys.executable, "rewards/scoring.py", "score", REWARD),
        "evaluation": traced(
            root, sys.executable, "cli/eval.py", "eval_models", COMMAND,
            "eval", "egpo-tiny", "--task", "countdown", "--problems", "2", "--n", "1", "--max-tokens", "16",
        ),
        "verl launch": traced(root, verl_python or sys.executable, "cli/train.py", "train", COMMAND, *on_verl),
    }  # fmt: skip


def shape(root: Path, verl_python: str | None, *, trace: bool = True) -> Shape:
    source = root / "src" / "egpo"
    texts = {path: path.read_text() for path in source.rglob("*.py")}
    texts = {path: text for path, text in texts.items() if text.count("\n") >= 3}
    functions = [
        node.end_lineno - node.lineno + 1
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    paths = hops(root, verl_python) if trace else {}
    sizes = [text.count("\n") for text in texts.values()]
    return Shape(len(sizes), sum(sizes), lengths(sizes), lengths(functions), repeated_names(source), paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--verl", metavar="PYTHON", help="an interpreter that has verl, for a real launch")
    parser.add_argument("--no-hops", action="store_true", help="skip the four traced paths (a minute)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = shape(options.root.resolve(), options.verl, trace=not options.no_hops)
    if options.json:
        print(json.dumps(asdict(found), indent=1))
        return
    print(f"files of three lines or more {found.files}, lines {found.lines}")
    print("lines per file:     median {median:.0f}, p90 {p90:.0f}, max {max}".format(**asdict(found.file_lines)))
    print("lines per function: median {median:.0f}, p90 {p90:.0f}, max {max}".format(**asdict(found.function_lines)))
    print(f"names in three packages or more: {len(found.names_in_three_packages)}")
    for name, packages in found.names_in_three_packages.items():
        print(f"  {name}: {', '.join(packages)}")
    for path, files in found.hops.items():
        print(f"{path}: {len(files)} files")


if __name__ == "__main__":
    main()
