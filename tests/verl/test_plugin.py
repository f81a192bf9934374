"""The plug-in is loud where verl would be silent, and leaves runs alone that do not ask for it."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from egpo.errors import ConfigError, EgpoError
from egpo.support import VERL_VERSION
from egpo.verl import settings
from egpo.verl.plugin_checks import end_on_failures, refuse_our_estimators, refuse_separate_trainers

# What verl does with a plug-in: import it, and drop what it raises.
AS_VERL_DOES = """
import sys
from egpo.verl import settings
settings.installed_version = lambda: {version!r}
sys.argv[1:] = {arguments!r}
try:
    import egpo.verl.plugin
except Exception:
    pass
print("went on", "torch" in sys.modules)
"""


def imported(version, *arguments):
    code = AS_VERL_DOES.format(version=version, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "argument",
    [
        "algorithm.adv_estimator=token_entropy",
        "algorithm.adv_estimator='mine.estimators:f'",
        "actor_rollout_ref.actor.policy_loss.loss_mode=mine:loss",
    ],
)
def test_a_method_whose_name_does_not_begin_with_ours_is_known_to_be_ours(argument):
    assert imported("0.8.0", argument).returncode == 2


@pytest.mark.parametrize("version", ["0.8.0", None])
def test_a_command_that_names_us_ends_at_once_under_a_verl_that_is_not_supported(version):
    done = imported(version, "data.train_batch_size=4", "algorithm.adv_estimator=egpo")
    assert done.returncode == 2
    assert "went on" not in done.stdout
    assert "the plug-in for verl could not be loaded" in done.stderr
    assert f"verl {version}" in done.stderr
    assert "==0.9.1 is supported" in done.stderr


def test_a_command_that_does_not_name_us_goes_on_and_the_complaint_is_still_printed():
    done = imported("0.8.0", "algorithm.adv_estimator=grpo", "data.train_files=data/egpo/train.parquet")
    assert (done.returncode, "went on" in done.stdout) == (0, True)
    assert "pip install 'verl==0.9.1' TransferQueue" in done.stderr


@pytest.mark.parametrize(("flashinfer", "given", "value"), [(False, None, "0"), (False, "1", "1"), (True, None, None)])
def test_vllm_is_told_when_flashinfer_is_not_there(tmp_path, flashinfer, given, value):
    """On a GPU vLLM would import it to sample, and end when it starts. A variable that the user set stays."""
    name = "VLLM_USE_FLASHINFER_SAMPLER"
    if flashinfer:
        (tmp_path / "flashinfer.py").touch()
    kept = {key: held for key, held in os.environ.items() if key != name} | ({name: given} if given else {})
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    code = AS_VERL_DOES.format(version="0.9.1", arguments=[]) + f"import os; print(os.environ.get({name!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=kept | {"PYTHONPATH": paths})
    assert done.stdout.splitlines()[-1] == str(value)


def test_another_version_is_noticed_once_for_all_processes_of_a_run():
    code = (
        "import subprocess, sys; from egpo.verl import settings; settings.installed_version = lambda: '0.9.2'; "
        "settings.require_supported = lambda version: f'verl {version} was not run'; import egpo.verl.plugin; "
        "sys.argv[1:] and subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    )
    done = subprocess.run([sys.executable, "-c", code, code], capture_output=True, text=True, check=True)
    assert done.stderr.count("verl 0.9.2 was not run") == 1


def test_it_is_light_and_quiet():
    done = imported("0.9.1")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "went on False", "")


def test_doctor_and_plug_in_know_the_same_version():
    settings.require_supported(VERL_VERSION)
    assert f"=={VERL_VERSION}" == settings.SUPPORTED
    with pytest.raises(EgpoError, match="verl is not installed"):
        settings.require_supported(None)


def config_of(estimator):
    return SimpleNamespace(algorithm=SimpleNamespace(adv_estimator=estimator))


def test_a_trainer_that_feeds_nobody_refuses_our_estimators_as_it_is_made():
    class Stock:
        def __init__(self, config, more=None):
            self.more = more

    class Derived(Stock):
        pass

    class EntropyTrainer:
        pass

    class FedStock(EntropyTrainer, Stock):
        pass

    refuse_our_estimators(Stock, "take another", allowed=EntropyTrainer)
    assert Stock(config_of("grpo"), more=3).more == 3
    assert FedStock(config=config_of("egpo"), more=3).more == 3
    for trainer in (Stock, Derived):
        message = f"`{trainer.__name__}` does not pass `egpo_calibrated` the entropy it needs; take another"
        with pytest.raises(ConfigError, match=message):
            trainer(config=config_of("egpo_calibrated"))


@pytest.mark.parametrize("keys", [{"random_rewards": 0.5}, {"controller": {"name": "adaptive_entropy"}}])
def test_a_trainer_that_would_ignore_our_keys_refuses_them(keys):
    class Stock:
        def __init__(self, config):
            pass

    refuse_our_estimators(Stock, "take another")
    config = config_of("grpo")
    config.algorithm.egpo = keys
    with pytest.raises(ConfigError, match=f"`Stock` would ignore `{next(iter(keys))}`; take another"):
        Stock(config)
    config.algorithm.egpo = {"record": "here"}
    Stock(config)


def test_trainers_apart_from_their_rollouts_are_refused_before_ray_starts():
    started = []
    main_ppo = SimpleNamespace(run_ppo=lambda config, task_runner_class: started.append(task_runner_class))
    refuse_separate_trainers(main_ppo, "take another")

    def run(estimator, hybrid):
        config = config_of(estimator)
        config.actor_rollout_ref = SimpleNamespace(hybrid_engine=hybrid)
        main_ppo.run_ppo(config, task_runner_class=estimator)

    run("grpo", False)
    run("egpo", True)
    with pytest.raises(ConfigError, match=r"hybrid_engine=False.*does not pass `egpo` the entropy.*take another"):
        run("egpo", False)
    assert started == ["grpo", "egpo"]


def test_a_failed_prompt_ends_the_run():
    class Buffer:
        def __init__(self):
            self.failure_keys, self.polled = {}, 0

        def _sync_metadata_from_transfer_queue(self):
            self.polled += 1

    buffer = Buffer()
    end_on_failures(buffer)
    buffer._sync_metadata_from_transfer_queue()
    buffer.failure_keys["train"] = {"uid"}
    with pytest.raises(
        EgpoError, match="the rollout or the reward of 1 prompt raised an exception; see the traceback above"
    ):
        buffer._sync_metadata_from_transfer_queue()
    assert buffer.polled == 2
