"""Keys and names that the plug-in adds to verl's own command line, tried on verl's real classes. No cluster."""

import asyncio
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

from hydra import compose, initialize_config_module  # noqa: E402
from hydra.errors import ConfigCompositionException  # noqa: E402
from verl.trainer.ppo.reward import load_reward_manager  # noqa: E402

from egpo.errors import InputError  # noqa: E402
from egpo.rewards.scoring import score  # noqa: E402
from verl import DataProto  # noqa: E402


def config_of(*overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def test_verls_main_takes_our_keys_without_a_plus():
    """The command of the README, as far as Hydra's composition (`--cfg job` prints it and ends)."""
    words = ["algorithm.adv_estimator=egpo", "algorithm.egpo.lam=0.3", "+algorithm.egpo.form=clip_entropy"]
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *words, "--cfg", "job", "--package", "algorithm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    composed = yaml.safe_load(done.stdout)
    assert (composed["adv_estimator"], composed["egpo"]) == ("egpo", {"lam": 0.3, "form": "clip_entropy"})


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["algorithm.egpo={lam:0.4,alpha:1.5}"], {"lam": 0.4, "alpha": 1.5}),
        (["algorithm.egpo.lam=0.4", "algorithm.egpo.lam=0.2"], {"lam": 0.2}),
        (["++algorithm.egpo.lam=0.4"], {"lam": 0.4}),
        (["algorithm.egpo.tags=['<a>','</a>']"], {"tags": ["<a>", "</a>"]}),
    ],
)
def test_every_form_of_an_override_reaches_the_section(words, found):
    assert config_of(*words).algorithm.egpo == found


def test_an_older_key_needs_no_plus_and_keys_that_are_not_ours_still_do():
    assert config_of("algorithm.egpo_lambda=0.4").algorithm.egpo_lambda == 0.4
    for word in ("algorithm.egponential=1", "algorithm.unknown=1", "trainer.egpo.lam=1"):
        with pytest.raises(ConfigCompositionException, match="append to your config use"):
            config_of(word)


class Decoder:
    """Token ids that are code points."""

    def decode(self, ids, skip_special_tokens):
        return "".join(map(chr, ids.tolist()))


def judged(manager, text, **columns):
    ids = torch.tensor([[*map(ord, text), 0]])
    mask = torch.tensor([[1] * len(text) + [0]])
    held = {}
    for name, value in columns.items():
        held[name] = np.empty(1, dtype=object)
        held[name][0] = value
    data = DataProto.from_dict({"responses": ids, "attention_mask": mask}, held)
    return manager.loop.run_until_complete(manager.run_single(data))


@pytest.fixture
def manager():
    asyncio.set_event_loop(asyncio.new_event_loop())
    return load_reward_manager(config_of("reward.reward_manager.name=hybrid"), Decoder())


MATH = {"data_source": "somebody/AIME", "reward_model": {"ground_truth": "42", "style": "rule"}}


@pytest.mark.parametrize("text", [r"It is \boxed{42}.", r"It is \boxed{41}.", "I do not know."])
def test_the_manager_hybrid_judges_as_our_hybrid_reward_does(manager, text):
    found = judged(manager, text, **MATH, ability="MATH", extra_info={"ability": "code", "index": 3})
    ours = score("mixed", text, "42", {"ability": "math"})
    extra = found["reward_extra_info"]
    assert found["reward_score"] == ours.reward
    assert (extra["acc"], extra["reason"], extra["judged_by"]) == (float(ours.correct), ours.reason, "mixed")


def test_the_manager_hybrid_tells_right_from_wrong_and_reads_the_ability_in_extra_info(manager):
    right, wrong = (
        judged(manager, rf"\boxed{{{answer}}}", **MATH, extra_info='{"ability": "math"}') for answer in (42, 41)
    )
    assert right["reward_score"] > wrong["reward_score"]
    with pytest.raises(InputError, match="has no `ability`"):
        judged(manager, "42", **MATH, extra_info={})


def test_the_manager_hybrid_takes_the_settings_of_our_reward_function():
    settings = "+reward.custom_reward_function.reward_kwargs.reasons=[]"
    quiet = load_reward_manager(config_of("reward.reward_manager.name=hybrid", settings), Decoder())
    found = judged(quiet, r"\boxed{42}", **MATH, ability="math")
    assert not [key for key in found["reward_extra_info"] if key.startswith("reason/")]
    assert found["reward_score"] == 1.0


def test_the_manager_hybrid_refuses_a_reward_function_that_it_would_never_call():
    config = config_of(
        "reward.reward_manager.name=hybrid",
        "reward.custom_reward_function.path=pkg://json",
        "reward.custom_reward_function.name=loads",
    )
    with pytest.raises(InputError, match=r"would never call `pkg://json`.*reward_manager\.name=naive"):
        load_reward_manager(config, Decoder())
