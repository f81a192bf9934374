"""The settings are data, at hand where verl is not, and each is one that verl knows."""

import subprocess
import sys

import pytest

from egpo.verl.cpu.launch_settings import ENVIRONMENT, OVERRIDES


def test_they_are_at_hand_without_torch_and_verl():
    code = (
        "import sys, egpo.verl.cpu.launch_settings; print(sorted({'torch', 'verl', 'ray', 'vllm'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_environment_is_text():
    assert all(isinstance(value, str) for value in ENVIRONMENT.values())


@pytest.mark.parametrize("part", ["param_dtype", "reduce_dtype", "buffer_dtype"])
def test_policy_and_reference_compute_alike(part):
    """Else the KL of a policy from itself is not 0."""
    engines = [f"+actor_rollout_ref.{name}.fsdp_config.mixed_precision.{part}" for name in ("actor", "ref")]
    assert [OVERRIDES[key] for key in engines] == ["fp32", "fp32"]


@pytest.fixture(scope="module")
def compose():
    """verl's configuration under some overrides, as `python -m verl.trainer.main_ppo` makes it."""
    pytest.importorskip("verl")
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        yield lambda overrides: compose("ppo_trainer", overrides=[f"{key}={value}" for key, value in overrides.items()])


@pytest.mark.verl
def test_verl_takes_every_override_and_a_rank_is_a_logical_gpu(compose):
    config = compose({**OVERRIDES, "trainer.n_gpus_per_node": 2})
    assert config.ray_kwargs.ray_init.num_gpus == 2
    assert config.actor_rollout_ref.rollout.n_gpus_per_node == 2
    assert config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "fp32"


@pytest.mark.verl
@pytest.mark.parametrize("key", [key for key in OVERRIDES if key.startswith("+")])
def test_a_plus_is_only_where_verl_lacks_the_key(compose, key):
    from hydra.errors import ConfigCompositionException

    with pytest.raises(ConfigCompositionException):
        compose({key.removeprefix("+"): OVERRIDES[key]})
