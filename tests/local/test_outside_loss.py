"""A loss form of a user's own is a plain function, named in the recipe."""

import pytest
import torch

from egpo.config import load_config
from egpo.errors import ConfigError, InputError
from egpo.local.step import step
from egpo.losses import Clip, loss_named
from tests.local.test_step import opened
from tests.losses.token_batches import tokens_of

SAPO = "tests.losses.outside_losses:sapo"


def test_it_is_found_by_its_name_and_has_its_gradient():
    tokens = tokens_of(spread=0.0)
    found = loss_named(SAPO)(tokens, Clip(), positive=2.0)
    (gradient_M,) = torch.autograd.grad(found.loss_M.sum(), tokens.logp_M)
    torch.testing.assert_close(gradient_M, -tokens.advantage_M)
    assert not (found.clipped_M | found.capped_M).any()


@pytest.mark.parametrize("name", [f"{SAPO}s", "no_such_module:f", "tests.losses.outside_losses:torch"])
def test_a_name_that_leads_nowhere_is_one_line(name):
    with pytest.raises(InputError, match="loss"):
        loss_named(name)


def test_one_number_in_place_of_one_per_token_is_named():
    with pytest.raises(InputError, match="not one loss per token"):
        loss_named("tests.losses.outside_losses:one_number")(tokens_of(), Clip())


def test_its_settings_come_from_the_recipe():
    words = ["model.path=egpo-tiny", "task.name=countdown"]
    chosen = load_config(overrides=[*words, f"update.loss={SAPO}", "update.loss_settings.positive=2.0"]).update
    assert chosen.settings_of_loss == {"positive": 2.0}
    with pytest.raises(ConfigError, match="not used by the built-in loss form `gspo`"):
        load_config(overrides=[*words, "update.loss=gspo", "update.loss_settings.positive=2.0"])
    with pytest.raises(ConfigError, match="did you mean `clip_cov`"):
        load_config(overrides=[*words, "update.loss=clip_cv"])


@pytest.mark.filterwarnings("ignore:.*neither.*:egpo.errors.EgpoWarning")
def test_it_trains(model_folder):
    words = ["update.mini_batch=1", "update.epochs=2"]
    ours = step(opened(model_folder, f"update.loss={SAPO}", "update.loss_settings.positive=3.0", *words), 0).metrics
    plain = step(opened(model_folder, *words), 0).metrics
    assert ours["actor/grad_norm"] != plain["actor/grad_norm"]
    assert ours["actor/pg_clipfrac"] == 0
