"""One batch, two engines: what verl trained on is what the embedded engine would have."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from egpo.assets import resolve_model
from egpo.verl.dumps import read_record
from tests.verl.replay import replay

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.npz"))
TEMPERATURE = 0.8
"""Of the run that `recorded/egpo.npz` is the first step of."""


def assert_conforms(recorded):
    """To 1e-6, at every token; 0 where the embedded engine would not train on the response."""
    found, mask_BT = replay(recorded), recorded.mask_BT
    if found.advantage_BT is not None:
        expected_BT = found.advantage_BT.numpy()
    else:
        expected_BT = np.where(mask_BT, found.advantage_B.nan_to_num(0.0).numpy()[:, None], 0.0)
    np.testing.assert_allclose(recorded.advantage_BT, expected_BT, rtol=0, atol=1e-6)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_embedded_engine_gives_the_advantages_that_verl_used(path):
    recorded = read_record(path)
    assert recorded.about["estimator"] == path.stem.removesuffix("-episodes")
    assert np.abs(recorded.advantage_BT).max() > 0.1
    assert_conforms(recorded)


def test_a_batch_whose_entropy_were_another_would_not_conform():
    """The recorded batch tells EGPO from GRPO: a test that any advantages pass proves nothing."""
    recorded = read_record(Path(__file__).parent / "recorded" / "egpo.npz")
    recorded.entropy_BT[:] = 0.0
    with pytest.raises(AssertionError):
        assert_conforms(recorded)


@torch.no_grad()
def test_the_recorded_entropy_is_shannon_s_at_the_sampling_temperature():
    """Of egpo-tiny, from whose weights the run started; one token's entropy, at another temperature, is far off."""
    recorded = read_record(Path(__file__).parent / "recorded" / "egpo.npz")
    model = AutoModelForCausalLM.from_pretrained(resolve_model("egpo-tiny"), dtype=torch.float32)
    for row in range(4):
        prompt = recorded.prompt_BS[row][recorded.prompt_mask_BS[row]]
        response = recorded.response_BT[row][recorded.mask_BT[row]]
        tokens = torch.from_numpy(np.concatenate([prompt, response]))[None]
        logp_TV = (model(tokens).logits[0, len(prompt) - 1 : -1] / TEMPERATURE).log_softmax(-1)
        entropy_T = -(logp_TV.exp() * logp_TV).sum(-1)
        recorded_T = recorded.entropy_BT[row][recorded.mask_BT[row]]
        np.testing.assert_allclose(entropy_T.numpy(), recorded_T, atol=2e-5)
