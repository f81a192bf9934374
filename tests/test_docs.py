"""What the documentation shows is run: Python blocks execute, shell commands of the README exit with 0."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import egpo
from egpo.rewards.sandbox import sandbox_status

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])


def blocks(page, language):
    """Blocks between lines of ```; what stands between lines of ~~~ is text that is shown."""
    text = re.sub(r"^~~~.*?^~~~$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def prose(page):
    return re.sub(r"^(```|~~~).*?^\1$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


PYTHON_PAGE = ROOT / "docs" / "python.md"
"""Its blocks form one script; those of the other pages run on their own."""
PYTHON_BLOCKS = [
    (page, i, code) for page in PAGES if page != PYTHON_PAGE for i, code in enumerate(blocks(page, "python"))
]
COMMANDS = [
    line for block in blocks(ROOT / "README.md", "bash") for line in block.splitlines() if line.startswith("egpo ")
]


@pytest.mark.parametrize(("page", "number", "code"), PYTHON_BLOCKS, ids=lambda value: getattr(value, "stem", ""))
def test_python_blocks_run(page, number, code, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT / "examples", check=False
    )
    assert done.returncode == 0, f"{page.name}, block {number}:\n{done.stderr}"


@pytest.mark.timeout(900)
def test_the_python_page_runs_from_top_to_bottom_in_an_empty_folder(tmp_path):
    environment = os.environ | {"MPLBACKEND": "agg"}
    code = "".join(blocks(PYTHON_PAGE, "python"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "did you mean `n`?" in done.stdout


def test_every_public_name_has_an_example_on_the_python_page():
    code = "".join(blocks(PYTHON_PAGE, "python"))
    assert [name for name in egpo.__all__ if not re.search(rf"\begpo\.{name}\b", code)] == []


@pytest.mark.timeout(900)
def test_readme_commands_run_one_after_the_other(tmp_path):
    """In an empty folder: the package alone is enough."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert len(COMMANDS) >= 4
    for command in COMMANDS:
        if "sandbox" in command and not sandbox_status().ok:
            continue  # it says so itself, with exit code 1
        done = subprocess.run(
            command.split(), capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_every_estimator_has_its_page_with_an_executed_example():
    from egpo.advantages import ESTIMATORS

    for name in ESTIMATORS:
        assert blocks(ROOT / "docs" / "algorithms" / f"{name}.md", "python")


def test_every_loss_form_and_controller_has_its_page_with_an_executed_example():
    from egpo.controllers import CONTROLLERS
    from egpo.losses import LOSSES

    for name in {*LOSSES, *CONTROLLERS} - {"clipped", "none"}:
        assert blocks(ROOT / "docs" / "algorithms" / f"{name}.md", "python")


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose(page)):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def anchors(page):
    """The anchors of a page on GitHub: its own, and those of its headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    named = re.findall(r'<a id="([^"]+)">', prose(page))
    return {*named, *(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)}


def test_anchors_lead_to_headings_on_github_too():
    """`make site` checks the anchors of the site, whose headings could be named by another rule."""
    found = 0
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([\w./-]*)#([^)]+)\)", prose(page)):
            assert anchor in anchors(page.parent / target if target else page), f"{page.name}: {target}#{anchor}"
            found += 1
    assert found > 50


@pytest.mark.parametrize("path", ["README.md", "Makefile", "AGENTS.md", "docs/tiny_model.md", "src/egpo/cli/demo.py"])
def test_the_demo_takes_as_long_everywhere(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.findall(r"(?:about |[a-z]+ and a half |)\w+ minutes on two cores", text) == [
        "about four minutes on two cores"
    ]
