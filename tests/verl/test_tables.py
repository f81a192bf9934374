"""The plug-in in verl itself, without a cluster: names, refusals, and our GRPO against verl's."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

from hydra import compose, initialize_config_module  # noqa: E402
from verl.trainer.ppo import core_algos, ray_trainer  # noqa: E402
from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base  # noqa: E402

from egpo.advantages import Signals, grpo  # noqa: E402
from egpo.errors import ConfigError  # noqa: E402
from egpo.verl.trainers import POLL_S, EgpoColocateAsync, EgpoSync, EntropyTrainer  # noqa: E402


def config_of(*overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def test_verl_knows_our_names_and_keeps_its_own():
    assert {"egpo", "egpo_calibrated", "grpo", "gae"} <= set(core_algos.ADV_ESTIMATOR_REGISTRY)
    assert core_algos.get_adv_estimator_fn("grpo") is core_algos.compute_grpo_outcome_advantage
    assert get_trainer_cls("sync") is get_trainer_cls("egpo_sync") is EgpoSync
    assert get_trainer_cls("colocate_async") is get_trainer_cls("egpo_colocate_async") is EgpoColocateAsync
    assert not issubclass(get_trainer_cls("separate_async"), EntropyTrainer)


REFUSALS = [
    (["algorithm.rollout_correction.bypass_mode=True"], "algorithm.rollout_correction.bypass_mode=False"),
    (["trainer.v1.trainer_mode=egpo_synk"], "did you mean `egpo_sync`"),
    (["+algorithm.egpo.lamm=0.4"], "did you mean `lam`"),
    (["+algorithm.egpo_lambda=0.4", "+algorithm.egpo.lam=0.3"], "both name the same setting"),
    (["actor_rollout_ref.rollout.temperature=0"], "greedy"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSALS)
def test_a_trainer_of_ours_refuses_before_it_is_built(overrides, message):
    with pytest.raises(ConfigError, match=message):
        EgpoSync(config_of("algorithm.adv_estimator=egpo", *overrides))


def test_a_trainer_that_uses_ours_waits_less_for_responses_and_another_as_before():
    ours, stock = (EgpoSync(config_of(f"algorithm.adv_estimator={name}")) for name in ("egpo", "grpo"))
    assert ours.replay_buffer.poll_interval == POLL_S
    assert stock.replay_buffer.poll_interval > POLL_S


SEPARATE = [
    "trainer.v1.trainer_mode=separate_async",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=8",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
]


def test_trainers_that_are_not_hooked_refuse_too():
    message = r"does not pass `egpo` the entropy it needs; run verl's main_ppo with trainer\.use_v1=True"
    with pytest.raises(ConfigError, match=message):
        get_trainer_cls("separate_async")(config_of("algorithm.adv_estimator=egpo", *SEPARATE))
    with pytest.raises(ConfigError, match=message):
        ray_trainer.RayPPOTrainer(config_of("algorithm.adv_estimator=egpo"), None, {}, None)


def test_the_experimental_mains_refuse_before_ray_starts():
    """They import `run_ppo` from `main_ppo`, as here."""
    from verl.trainer.main_ppo import run_ppo

    with pytest.raises(ConfigError, match=r"hybrid_engine=False.*does not pass `egpo`"):
        run_ppo(config_of("algorithm.adv_estimator=egpo", "actor_rollout_ref.hybrid_engine=False"), None)


def test_a_hook_that_fails_ends_the_import_and_says_so():
    code = (
        "import egpo.verl.estimators as ours\n"
        "def broken(module): raise ImportError('no such name')\n"
        "ours.register_estimators = broken\n"
        "import verl\n"
        "import verl.trainer.ppo.core_algos\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "egpo: the plug-in for verl could not be loaded: ImportError: no such name" in done.stderr
    assert "VERL_USE_EXTERNAL_PLUGINS=none" in done.stderr


@st.composite
def batches(draw):
    """Groups of 1 to 6 in any order, rewards of few and of many values, rows of 1 to 5 tokens."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    uids = draw(st.permutations([f"uid-{group}" for group, size in enumerate(sizes) for _ in range(size)]))
    value = st.sampled_from([0.0, 0.1, 1.0, 1.1]) | st.floats(-4, 4, width=32)
    rewards = draw(st.lists(value, min_size=len(uids), max_size=len(uids)))
    lengths = draw(st.lists(st.integers(1, 5), min_size=len(uids), max_size=len(uids)))
    return uids, torch.tensor(rewards, dtype=torch.float32), torch.tensor(lengths)


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
@pytest.mark.parametrize("normalize", [True, False])
@settings(max_examples=300)
@given(batch=batches())
def test_our_grpo_is_verl_s(normalize, batch):
    """To 1e-5 of float32 arithmetic; where a group's rewards agree to within rounding ours is 0, and verl's noise."""
    uids, reward_B, length_B = batch
    mask_BT = (torch.arange(5) < length_B[:, None]).float()
    reward_BT = torch.zeros(len(uids), 5)
    reward_BT[torch.arange(len(uids)), length_B - 1] = reward_B
    theirs_BT, _ = core_algos.compute_grpo_outcome_advantage(
        reward_BT.clone(), mask_BT, np.array(uids, dtype=object), norm_adv_by_std_in_grpo=normalize
    )
    ours_B = grpo(Signals(reward_B, uids), normalize=normalize)
    for uid in set(uids):
        rows = [row for row, other in enumerate(uids) if other == uid]
        spread = float(reward_B[rows].max() - reward_B[rows].min())
        if len(rows) > 1 and spread < 1e-3:
            continue
        torch.testing.assert_close(ours_B[rows], theirs_BT[rows, 0], rtol=1e-4, atol=1e-5)


def test_where_a_group_agrees_ours_is_zero_and_verl_s_is_noise():
    reward_BT, uids = torch.full((16, 1), 0.9), np.array(["a"] * 16, dtype=object)
    theirs_BT, _ = core_algos.compute_grpo_outcome_advantage(reward_BT.clone(), torch.ones(16, 1), uids)
    assert float(theirs_BT[0, 0]) == pytest.approx(-0.056, abs=0.005)
    assert not grpo(Signals(reward_BT[:, 0], list(uids))).any()


def test_a_trainer_from_outside_is_refused_as_well():
    """The guard stands on the class that all of them are derived from."""

    class Outside(trainer_base.PPOTrainer):
        on_step_end = on_sample_end = lambda self: None

    with pytest.raises(ConfigError, match="`Outside` does not pass `egpo`"):
        Outside(config_of("algorithm.adv_estimator=egpo"))
