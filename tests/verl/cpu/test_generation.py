"""egpo-tiny in plain vLLM: it says what transformers says."""

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from egpo.assets import resolve_model
from egpo.tasks.load import load_task

pytestmark = pytest.mark.verl
pytest.importorskip("vllm")

TOKENS = 48
_GENERATE = """
import json, sys
from vllm import LLM, SamplingParams
model, prompts, tokens = json.load(sys.stdin)
llm = LLM(model, dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=8)
wanted = SamplingParams(temperature=0, max_tokens=tokens, logprobs=0)
outputs = [o.outputs[0] for o in llm.generate([{"prompt_token_ids": p} for p in prompts], wanted, use_tqdm=False)]
said = [[list(o.token_ids), [next(iter(at.values())).logprob for at in o.logprobs]] for o in outputs]
print("ANSWER " + json.dumps(said))
"""


@pytest.fixture(scope="module")
def prompts():
    """Four problems of each of two tasks that the model was taught, as token ids."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("egpo-tiny"))
    tasks = [load_task(name) for name in ("countdown", "gsm8k")]
    chats = [task.prompt(problem) for task in tasks for problem in task.problems("test")[:4]]
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def said_by_vllm(prompts):
    """Token ids and their log-probabilities, greedily. In a process of its own: vLLM settles in for good."""
    done = subprocess.run(
        [sys.executable, "-c", _GENERATE],
        input=json.dumps([str(resolve_model("egpo-tiny")), prompts, TOKENS]),
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": "1",
        },
        timeout=240,
        check=False,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.split("ANSWER ")[-1])


def test_vllm_says_what_transformers_says(prompts, said_by_vllm):
    """The same greedy tokens, with the same log-probabilities, up to the order of float32 sums."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model("egpo-tiny"), dtype=torch.float32)
    for prompt, (tokens, logps) in zip(prompts, said_by_vllm, strict=True):
        with torch.no_grad():
            ours = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=TOKENS)[0, len(prompt) :]
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        assert tokens == ours.tolist()
        logp = logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logps), logp, atol=1e-4, rtol=1e-4)
