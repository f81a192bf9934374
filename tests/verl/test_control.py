"""A controller of the entropy term in verl: what it sends to the workers, and what survives a checkpoint."""

from types import SimpleNamespace

import pytest

from egpo import controllers
from egpo.errors import InputError
from egpo.verl import control
from egpo.verl.control import FILE, EntropyControl, controller_faults
from egpo.verl.settings import ControllerKeys, read_settings

KEYS = ControllerKeys(name="adaptive_entropy", settings={"target": 0.3, "delta": 0.1, "start": 0.1})


@pytest.fixture
def workers(monkeypatch):
    """The weights that the workers were sent, in order."""
    sent = []
    monkeypatch.setattr(control, "_loss_of", lambda actor: actor.entropy_coeff)
    return SimpleNamespace(sent=sent, set_loss_fn=sent.append)


def run(one, entropies, actor, workers):
    return [one.apply({"actor/entropy": entropy, "note": "text"}, actor, workers) for entropy in entropies]


def test_the_workers_get_a_new_loss_only_when_the_weight_changes(workers):
    actor = SimpleNamespace(entropy_coeff=0)
    metrics = run(EntropyControl(KEYS), [0.5, 0.5, 0.2, 0.2, 0.2, 0.5], actor, workers)
    weights = [one["actor/entropy_weight"] for one in metrics]
    assert weights == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2, 0.0])
    assert workers.sent == pytest.approx([0.1, 0.2, 0.0])
    assert metrics[-1]["controller/entropy_coefficient"] == pytest.approx(0.3)


def test_a_resumed_run_continues_with_the_state_of_its_checkpoint(workers, tmp_path):
    whole, first, second = EntropyControl(KEYS), EntropyControl(KEYS), EntropyControl(KEYS)
    entropies = [0.2, 0.1, 0.4, 0.2]
    expected = run(whole, entropies, SimpleNamespace(entropy_coeff=0), workers)
    run(first, entropies[:2], SimpleNamespace(entropy_coeff=0), workers)
    first.save(tmp_path / "global_step_2")
    second.load(tmp_path / "global_step_2")
    # The workers of a new process start with the weight of the configuration.
    found = run(second, entropies[2:], SimpleNamespace(entropy_coeff=0), workers)
    assert [one["actor/entropy_weight"] for one in found] == [one["actor/entropy_weight"] for one in expected[2:]]


@pytest.mark.filterwarnings("error")
def test_a_checkpoint_without_a_state_is_reported(tmp_path):
    with pytest.raises(Warning, match=FILE):
        EntropyControl(KEYS).load(tmp_path)


def learning_rate(state, measured):
    return controllers.Control({"lr": 1e-6}, {})


def test_what_verl_cannot_change_between_steps_is_refused(workers):
    outside = ControllerKeys(name="tests.verl.test_control:learning_rate")
    with pytest.raises(InputError, match="sets `lr`, and under verl a controller can set `entropy_weight` alone"):
        run(EntropyControl(outside), [0.2], SimpleNamespace(entropy_coeff=0), workers)
    declared = ControllerKeys(name="tests.verl.test_control:declared")
    (fault,) = controller_faults(declared)
    assert "sets `lr`" in fault.what


declared = controllers.Controller(learning_rate, sets=("lr",))


def test_wrong_controllers_are_faults_before_the_first_step():
    assert controller_faults(None) == controller_faults(KEYS) == []
    (fault,) = controller_faults(ControllerKeys(name="adaptiv_entropy"))
    assert "did you mean `adaptive_entropy`" in str(fault)
    (fault,) = controller_faults(ControllerKeys(name="adaptive_entropy", settings={"targt": 0.3}))
    assert "did you mean `target`" in str(fault)


def test_the_plug_in_reads_the_controller():
    section = {"name": "adaptive_entropy", "settings": {"target": 0.3}}
    settings = read_settings({"adv_estimator": "grpo", "egpo": {"controller": section}})
    assert settings.controller == ControllerKeys(**section)
    assert settings.arguments == {"normalize": True}
