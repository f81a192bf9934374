"""docs/dependencies.md: a row with a reason for every dependency, and no other row; every import is declared."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "dependencies.md").read_text()
EXTRAS = PROJECT["optional-dependencies"]
COLLECTIONS = {"dev", "all"}
"""Extras that only collect packages of others, or have a table of their own."""
COMES_WITH = {"yaml": "pyyaml", "pydantic_core": "pydantic", "markupsafe": "jinja2", "transfer_queue": "transferqueue"}
"""Modules that are not named like the package that brings them."""
ELSEWHERE = {
    "triton": "comes with torch for GPUs, and is imported for them only",
    "omegaconf": "of verl",
    "hydra": "of verl",
    "zmq": "of verl",
    "bfcl_eval": "runs in BFCL's own environment",
    "overrides": "of BFCL's driver",
    "registry": "of BFCL's driver",
    "bounded_answers": "of BFCL's driver",
}
"""Modules without a declared package, with the reason."""


def names(requirements):
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def rows(title):
    """The cells of each row of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def packages(title, column=0):
    return [canonicalize_name(row[column].strip("`")) for row in rows(title)]


def test_every_package_of_the_run_time_has_one_row():
    assert sorted(packages("At run time")) == sorted(names(PROJECT["dependencies"]))


def test_every_package_for_development_has_one_row():
    assert sorted(packages("For development")) == sorted(names(EXTRAS["dev"]))


def test_every_optional_package_has_a_row_under_its_extra():
    declared = {(extra, name) for extra, texts in EXTRAS.items() for name in names(texts) if extra not in COLLECTIONS}
    declared = {(extra, name) for extra, name in declared if name != "egpo"}
    found = zip((row[0].strip("`") for row in rows("Optional extras")), packages("Optional extras", 1), strict=True)
    assert sorted(found) == sorted(declared)


@pytest.mark.parametrize("title", ["At run time", "Optional extras", "For development"])
def test_every_row_has_a_reason(title):
    assert all(len(row[-1].split()) >= 2 for row in rows(title))


def test_what_is_imported_is_declared():
    """A package that only another one brings may vanish with that one's next version."""
    declared = names(PROJECT["dependencies"]).union(*(names(texts) for texts in EXTRAS.values()))
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for module in {module.partition(".")[0] for module in modules}:
                if module in sys.stdlib_module_names or module == "egpo" or module in ELSEWHERE:
                    continue
                assert canonicalize_name(COMES_WITH.get(module, module)) in declared, f"{path} imports {module}"


def test_hand_written_parts_exist_and_are_as_long_as_the_page_says():
    """Within a third: the page has the number of one day."""
    for part, lines, reason in rows("Larger parts that were written here"):
        counted = sum(
            len(path.read_text().splitlines()) for name in re.findall("`(.+?)`", part) for path in files(name)
        )
        said = int(lines.replace(",", ""))
        assert counted > 150, part
        assert abs(counted - said) <= said / 3, f"{part}: {counted} lines"
        assert len(reason.split()) >= 8


def files(name):
    place = ROOT / "src" / "egpo" / name
    assert place.exists(), name
    endings = {".py", ".c", ".h", ".js", ".css", ".jinja"}
    return [place] if place.is_file() else [path for path in place.rglob("*") if path.suffix in endings]
