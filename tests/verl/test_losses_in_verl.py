"""Loss forms in verl itself, without a cluster: ours against verl's, in value and in gradient."""

import pickle

import pytest
import torch

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

from verl.trainer.ppo import core_algos  # noqa: E402
from verl.workers.config import FSDPActorConfig  # noqa: E402

from egpo.advantages import ESTIMATORS as TABLE  # noqa: E402
from egpo.local.updates.losses import token_weights  # noqa: E402
from egpo.verl.launch.translation import AGGREGATIONS as AGGREGATION_OF  # noqa: E402
from egpo.verl.losses import NO_DUAL_CLIP, VERLS_LOSSES, as_verl_calls_it  # noqa: E402
from egpo.verl.settings import VERLS_OWN  # noqa: E402
from tests.verl.test_losses import HERE, batch  # noqa: E402

AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def actor_of(**settings):
    return FSDPActorConfig(
        strategy="fsdp2", rollout_n=4, use_dynamic_bsz=True, clip_ratio_low=0.2,
        clip_ratio_high=0.28, clip_ratio_c=NO_DUAL_CLIP, **settings,
    )  # fmt: skip


def loss_and_gradient(function, aggregation, config, weights_BT=None, seed=0):
    old_BT, new_BT, advantage_BT, mask_BT = batch(seed)
    loss, metrics = function(
        old_log_prob=old_BT,
        log_prob=new_BT,
        advantages=advantage_BT,
        response_mask=mask_BT,
        loss_agg_mode=aggregation,
        config=config,
        rollout_is_weights=weights_BT,
    )
    loss.backward()
    return loss.detach(), new_BT.grad, metrics


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", ["clipped", "gspo", "cispo"])
def test_the_loss_forms_that_verl_has_are_ours(name, aggregation):
    """So verl's own is used: the same loss, gradient and clipped fraction to 1e-6, with importance weights too."""
    weights_BT = torch.rand(6, 9, generator=torch.Generator().manual_seed(5))
    theirs = loss_and_gradient(
        core_algos.get_policy_loss_fn(VERLS_LOSSES[name].mode), aggregation, actor_of(), weights_BT
    )
    ours = loss_and_gradient(as_verl_calls_it(f"egpo:{name}"), aggregation, actor_of(), weights_BT)
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=1e-6)
    assert bool(theirs[1].any())
    assert theirs[2]["actor/pg_clipfrac"] > 0.05
    for metric in ("actor/pg_clipfrac", "actor/ppo_kl"):
        assert ours[2][metric] == pytest.approx(theirs[2][metric], abs=1e-6)


@pytest.mark.parametrize("ours", ["sequence_mean", "fixed_length"])
def test_means_over_sequences_count_rows_without_tokens_in_verl_alone(ours):
    """verl's trainer always gives the loss the configured number of rows, with which padding has no tokens."""
    _, loss_BT, _, mask_BT = batch()
    sizes = {"global_batch_size": len(mask_BT), "loss_scale_factor": 9}
    theirs = core_algos.agg_loss(loss_BT.detach(), mask_BT, AGGREGATION_OF[ours], **sizes)
    weight_B = token_weights(mask_BT.sum(1), ours, horizon=9)
    rows_with_tokens = int(mask_BT.any(1).sum())
    assert rows_with_tokens == len(mask_BT) - 1
    expected = (weight_B[:, None] * loss_BT.detach() * mask_BT).sum() * rows_with_tokens / len(mask_BT)
    torch.testing.assert_close(theirs, expected, rtol=1e-6, atol=0)


def test_a_dual_clip_of_verl_s_is_ours():
    config = actor_of()
    object.__setattr__(config, "clip_ratio_c", 1.5)
    theirs = loss_and_gradient(core_algos.get_policy_loss_fn("vanilla"), "token-mean", config, seed=1)
    ours = loss_and_gradient(as_verl_calls_it("egpo:clipped"), "token-mean", config, seed=1)
    torch.testing.assert_close(ours[:2], theirs[:2], rtol=0, atol=1e-6)
    assert ours[2] == pytest.approx(theirs[2], abs=1e-6)
    assert theirs[2]["actor/pg_clipfrac_lower"] > 0


def test_every_loss_mode_that_the_translation_names_is_verl_s():
    modes = {row.mode for row in VERLS_LOSSES.values()}
    assert modes <= set(core_algos.POLICY_LOSS_REGISTRY)
    settings = {key for row in VERLS_LOSSES.values() for key in row.keys.values()}
    assert settings <= set(vars(actor_of().policy_loss))


def test_a_loss_form_from_outside_is_found_by_verl_s_own_lookup():
    """As `ppo_loss` looks it up, after verl was imported with the plug-in."""
    from verl.workers.utils import losses

    found = losses.get_policy_loss_fn(f'{HERE}:weighted?{{"weight": 2.0}}')
    loss, gradient, _ = loss_and_gradient(found, "token-mean", actor_of())
    old_BT, new_BT, advantage_BT, mask_BT = batch()
    expected_BT = -2.0 * advantage_BT * (new_BT - old_BT).exp().clamp(max=1.28)
    torch.testing.assert_close(loss, expected_BT[mask_BT].mean().detach(), rtol=0, atol=1e-6)
    assert not gradient[~mask_BT].any()
    assert bool(gradient[mask_BT].any())


def test_a_micro_batch_without_tokens_has_a_gradient_of_zero():
    old_BT, new_BT, advantage_BT, mask_BT = batch()
    found = core_algos.get_policy_loss_fn(f"{HERE}:weighted")
    config = actor_of()
    config.global_batch_info["batch_num_tokens"] = 7
    loss, metrics = found(old_BT, new_BT, advantage_BT, mask_BT & False, "token-mean", config)
    loss.backward()
    assert not new_BT.grad.any()
    assert set(metrics.values()) == {0.0}


def test_no_name_of_ours_is_one_of_verl_s_with_other_values():
    """verl refuses a second estimator of the same name; those that both have are compared in `test_tables.py`."""
    theirs = {member.value for member in core_algos.AdvantageEstimator}
    assert theirs & set(TABLE) == set(VERLS_OWN)


def test_the_loss_with_another_entropy_weight_reaches_the_workers_as_verl_makes_it():
    from egpo.verl.control import _loss_of
    from tests.verl.test_tables import config_of

    config = config_of("actor_rollout_ref.model.path=x", "actor_rollout_ref.actor.use_dynamic_bsz=True")
    actor = config.actor_rollout_ref.actor
    actor.entropy_coeff = 0.125
    loss = pickle.loads(pickle.dumps(_loss_of(actor)))
    assert loss.func.__name__ == "ppo_loss"
    assert loss.keywords["config"].entropy_coeff == 0.125
    assert loss.keywords["config"].policy_loss.loss_mode == "vanilla"
