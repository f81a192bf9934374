"""One batch, two engines: what verl trained on is what the embedded engine would have."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from egpo.advantages import ESTIMATORS
from egpo.assets import resolve_model
from egpo.verl.dumps import read_record
from egpo.verl.estimators import EstimatorInputs, register_estimators, with_inputs
from egpo.verl.measures import Measures
from egpo.verl.rows import Rows, TokenTables, find_responses
from egpo.verl.settings import read_settings
from tests.verl.replay import replay

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.npz"))
PER_TOKEN = [name for name, row in ESTIMATORS.items() if row.level == "token"]
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


def as_verl_computes(recorded, name):
    """The advantages of a recorded batch under another estimator, through the function that verl calls."""
    table = {}
    register_estimators(SimpleNamespace(register_adv_est=lambda name: lambda fn: table.setdefault(name, fn)), [name])
    keys = [f"{group}_{row}_0" for row, group in enumerate(recorded.groups.tolist())]
    mask_BT, entropy_BT = torch.from_numpy(recorded.mask_BT), torch.from_numpy(recorded.entropy_BT)
    rows = Rows(
        groups=tuple(recorded.groups.tolist()),
        prompt_BS=torch.from_numpy(recorded.prompt_BS),
        prompt_mask_BS=torch.from_numpy(recorded.prompt_mask_BS),
        response_BT=torch.from_numpy(recorded.response_BT),
        mask_BT=mask_BT,
        entropy_BT=entropy_BT,
        logp_BT=torch.from_numpy(recorded.logp_BT),
        score_B=torch.from_numpy(recorded.reward_B),
        sampled_logp_BT=None,
        information=tuple({"acc": float(c), "failed": float(f)}
                          for c, f in zip(recorded.correct_B, recorded.failed_B, strict=True)),
    )  # fmt: skip
    settings, measures = read_settings({"adv_estimator": name}), Measures({}, {}, None)
    responses = find_responses(keys, [{}] * len(keys))
    inputs = EstimatorInputs(settings, responses, rows, measures, TokenTables(entropy_BT, mask_BT))
    reward_BT = torch.zeros_like(entropy_BT)
    reward_BT[:, 0] = rows.score_B
    with with_inputs(inputs):
        advantage_BT, _ = table[name](token_level_rewards=reward_BT, response_mask=mask_BT.float())
    about = {**recorded.about, "estimator": name, "segment": None, "arguments": settings.arguments}
    return replace(recorded, advantage_BT=advantage_BT.numpy(), about=about)


@pytest.mark.parametrize("name", PER_TOKEN)
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_estimator_per_token_agrees_on_what_verl_recorded(path, name):
    """On single responses and on episodes, whose masks have holes, also with a response that could not be judged."""
    recorded = read_record(path)
    assert_conforms(as_verl_computes(recorded, name))
    recorded.failed_B[0] = True
    found = as_verl_computes(recorded, name)
    assert_conforms(found)
    assert not found.advantage_BT[0].any()


@pytest.mark.parametrize("name", PER_TOKEN)
def test_the_recorded_batches_give_every_estimator_per_token_something_to_do(name):
    found = [as_verl_computes(read_record(path), name).advantage_BT for path in RECORDED]
    assert max(float(np.abs(advantage_BT).max()) for advantage_BT in found) > 0.1


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
