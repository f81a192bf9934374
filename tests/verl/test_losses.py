"""Loss forms in verl's words, and ours as verl calls them. M tokens, B rows, T tokens of a row."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.losses import LOSSES, LossForm
from egpo.losses.clipped import clipped
from egpo.verl.losses import VERLS_LOSSES, accept_plugin_losses, loss_faults, loss_mode, plugin_loss, recipe_loss

HERE = "tests.verl.test_losses"
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


def weighted(tokens, clip, weight=1.0):
    """A loss form as a user writes one: the policy gradient, with the clip's upper bound as a cap of the ratio."""
    ratio_M = tokens.log_ratio_M().exp().clamp(max=1 + clip.high)
    return -weight * tokens.advantage_M * ratio_M


choosing = LossForm(lambda tokens, clip: clipped(tokens, clip), mark=lambda tokens: tokens.entropy_K > 1)


@pytest.mark.parametrize("name", sorted(VERLS_LOSSES))
def test_every_setting_of_a_loss_form_that_verl_has_is_one_of_verl_s_or_named_as_missing(name):
    settings = LOSSES[name].settings
    ours = set(settings.model_fields) if settings else set()
    assert ours == {*VERLS_LOSSES[name].keys, *VERLS_LOSSES[name].lacks}


@given(st.dictionaries(st.text(min_size=1), VALUES, max_size=3))
def test_a_loss_from_outside_keeps_its_settings(settings):
    assert recipe_loss(loss_mode("mine.losses:loss", settings)) == ("mine.losses:loss", settings)


def test_verls_own_loss_forms_go_by_their_own_names():
    assert [loss_mode(name, {}) for name in ("clipped", "gspo")] == ["vanilla", "gspo"]
    assert recipe_loss("vanilla") is None
    assert recipe_loss("egpo:gspo") == ("gspo", {}), "a row of our table"


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("no_such_module:loss", "no_such_module"),
        (f"{HERE}:nothing", "has no loss form `nothing`"),
        (f"{HERE}:weighted?[1]", "are not an object"),
        (f"{HERE}:weighted?" + "{weight", "are not JSON"),
        (f"{HERE}:choosing", "chooses among the tokens of a mini-batch"),
    ],
)
def test_what_the_plug_in_cannot_compute_is_one_line_before_the_first_step(mode, said):
    (fault,) = loss_faults({"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": mode}}}})
    assert said in str(fault)
    assert len(str(fault).splitlines()) == 1


def test_a_stock_command_is_not_asked_about_its_loss():
    assert list(loss_faults({"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": "dro"}}}})) == []
    assert list(loss_faults({})) == []
    with pytest.raises(InputError, match="is not a loss form `module:name`"):
        plugin_loss("dro")


def test_a_mode_is_registered_when_an_actor_asks_for_it():
    """Through verl's own table, and only once: the actor asks in every micro-batch."""
    table = {"vanilla": "verl's"}
    core = SimpleNamespace(
        POLICY_LOSS_REGISTRY=table,
        register_policy_loss=lambda name: lambda fn: table.setdefault(name, fn),
        get_policy_loss_fn=lambda name: table[name],
    )
    accept_plugin_losses(core)
    assert core.get_policy_loss_fn("vanilla") == "verl's"
    found = core.get_policy_loss_fn(f"{HERE}:weighted")
    assert core.get_policy_loss_fn(f"{HERE}:weighted") is found
    with pytest.raises(KeyError):
        core.get_policy_loss_fn("unknown")


def batch(seed=0, rows=6, length=9):
    """Old and new log-probabilities far enough apart that clips are active, masks with holes, and an empty row."""
    generator = torch.Generator().manual_seed(seed)
    old_BT = -torch.rand(rows, length, generator=generator)
    new_BT = (old_BT + 0.3 * torch.randn(rows, length, generator=generator)).requires_grad_()
    advantage_BT = torch.randn(rows, length, generator=generator)
    mask_BT = torch.rand(rows, length, generator=generator) < 0.7
    mask_BT[0] = False
    return old_BT, new_BT, advantage_BT, mask_BT
