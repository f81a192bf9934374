"""With `model.deterministic`, a step on a GPU is the same to the bit. Run by `make test-gpu`."""

import subprocess
import sys

import pytest
import torch

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

PROGRAM = """
import hashlib, sys, torch
from egpo.config.schema import Model, Update
from egpo.local.models.loading import load_policy
from egpo.local.updates.optimizer import Optimizer
from egpo.local.updates.update import update
from tests.local.sampling.test_sample import ENDS, drawn
from tests.local.updates.test_update import ample, settings_of

policy = load_policy(Model(path=sys.argv[1], device="cuda", dtype="bfloat16", deterministic=True))
optimizer = Optimizer(policy.model.named_parameters(), Update(lr=1e-3))
digest = hashlib.sha256()
for step in range(3):
    rollouts = drawn(policy, n=8, stop_tokens=ENDS)
    advantage_B = torch.linspace(-1, 1, len(rollouts))
    update(policy, optimizer, rollouts, advantage_B, settings_of(lr=1e-3), ample(), step)
    for tensor in (rollouts.response_BT, rollouts.logp_BT, *optimizer.state().values()):
        digest.update(tensor.cpu().numpy().tobytes())
print(digest.hexdigest())
"""


def test_three_steps_twice(model_folder):
    command = [sys.executable, "-c", PROGRAM, str(model_folder("qwen3"))]
    digests = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(digests) == 1
