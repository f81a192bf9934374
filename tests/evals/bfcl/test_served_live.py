"""A real model behind real vLLM, through the official evaluator: what it scores is not the point, that it runs is."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from egpo.assets import resolve_model

pytest.importorskip("vllm")
ROOT = Path(__file__).resolve().parents[3]
BFCL = ROOT / ".env-bfcl" / "bin" / "python"
LONGEST = 128
pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(not BFCL.exists(), reason="BFCL's environment is not made"),
]


@pytest.fixture
def long_sighted(tmp_path):
    """egpo-tiny with a context that BFCL's prompts fit. It was never taught so long ones."""
    folder = tmp_path / "tiny-long"
    shutil.copytree(resolve_model("egpo-tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 24576}))
    return folder


def answer_lengths(results):
    """In tokens: a number for a case of one turn, and lists of them by turn and step otherwise."""
    open_ = [json.loads(line)["output_token_count"] for line in results.read_text().splitlines()]
    while open_:
        counts = open_.pop()
        if isinstance(counts, list):
            open_ += counts
        else:
            yield counts


def test_egpo_tiny_sits_bfcl(long_sighted, tmp_path):
    command = [sys.executable, "-m", "egpo", "eval", "bfcl", str(long_sighted), "--format", "template", "--cases", "1"]
    command += ["--categories", "simple_python,multi_turn_base", "--threads", "2", "--out", str(tmp_path), "--json"]
    command += ["--max-tokens", str(LONGEST)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"EGPO_BFCL_PYTHON": str(BFCL)}, timeout=540
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (evaluation,) = json.loads(done.stdout)["evaluations"]
    assert {part["category"]: part["num_cases"] for part in evaluation["categories"]} == {
        "simple_python": 1,
        "multi_turn_base": 1,
    }
    lines = [json.loads(line) for line in Path(evaluation["file"]).with_suffix(".jsonl").read_text().splitlines()]
    assert not any(line["failed"] for line in lines)
    lengths = [length for path in tmp_path.rglob("BFCL_v4_*_result.json") for length in answer_lengths(path)]
    assert sum(lengths) == sum(line["num_tokens"] for line in lines)
    assert 0 < min(lengths) <= max(lengths) <= LONGEST
