"""Health rules: silent on the healthy, once on the sick, the same after a resumption."""

import math
import random
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.config import load_config
from egpo.environments.protocol import FAULT_REASONS
from egpo.errors import EgpoError, InputError
from egpo.runs import RULES, Health, MetricStream, Note, NoteStream, read_metrics, read_notes
from egpo.runs.metrics import LONGEST, History

NAMES = [
    "actor/entropy", "actor/grad_norm", "actor/kl", "actor/pg_loss", "critic/score/mean", "egpo/segment/coverage",
    "groups/zero_variance_frac", "response_length/clip_ratio", "reward/error_frac",
]  # fmt: skip
HISTORIES = st.lists(st.dictionaries(st.sampled_from(NAMES), st.floats() | st.floats(-1, 1)), max_size=40)


def healthy(step, rng):
    return {
        "actor/entropy": 0.9 * math.exp(-step / 100) * rng.uniform(0.95, 1.05),
        "actor/grad_norm": rng.uniform(0.05, 1.0),
        "actor/kl": 0.0005 * step,
        "actor/pg_loss": rng.gauss(0, 0.1),
        "critic/score/mean": 0.2 + 0.5 * step / 120 + rng.gauss(0, 0.05),
        "egpo/segment/coverage": rng.uniform(0.5, 1),
        "groups/zero_variance_frac": rng.uniform(0.1, 0.6),
        "response_length/clip_ratio": rng.uniform(0, 0.2),
        "reward/error_frac": rng.uniform(0, 0.03),
    }


def observed(history, health=None, first=1):
    health = health or Health()
    return [note for step, metrics in enumerate(history, first) for note in health.observe(step, metrics)]


@given(st.integers(0, 10_000), st.integers(1, 120))
def test_a_healthy_run_hears_nothing(seed, steps):
    rng = random.Random(seed)
    assert observed([healthy(step, rng) for step in range(1, steps + 1)]) == []


@given(HISTORIES)
def test_each_rule_speaks_once_at_most_and_in_order(history):
    notes = observed(history)
    assert len({note.rule for note in notes}) == len(notes)
    assert [note.step for note in notes] == sorted(note.step for note in notes)


@given(HISTORIES, st.data())
def test_a_resumed_run_hears_what_the_uninterrupted_one_hears(history, data):
    """Through the files, which hold no NaN, with lines of steps that the resumed run repeats."""
    checkpoint = data.draw(st.integers(0, len(history)))
    expected = observed(history)
    with TemporaryDirectory() as folder:
        metrics, notes = MetricStream(Path(folder) / "metrics.jsonl"), NoteStream(Path(folder) / "health.jsonl")
        metrics.path.touch()
        for step, figures in enumerate(history, 1):
            metrics.append(step, figures)
        for note in expected:
            notes.append(note)
        metrics.forget_after(checkpoint)
        notes.forget_after(checkpoint)
        known = read_notes(notes.path)
        health = Health(history=read_metrics(metrics.path), notes=known)
        assert known + observed(history[checkpoint:], health, checkpoint + 1) == expected


def steady(name, value, steps):
    return [{name: value}] * steps


SICK = {
    "loss_not_finite": [{"actor/pg_loss": float("nan")}],
    "grad_norm_exploded": [*steady("actor/grad_norm", 0.5, 5), {"actor/grad_norm": 10.5}],
    "grad_norm_unusual": [{"actor/grad_norm": 5e-4, "critic/score/mean": 0.1}] * 5,
    "sampler_differs": [{"sampler/logp_diff_mean": 0.06, "sampler/clipped_frac": 0.0}] * 3,
    "entropy_collapsed": [{"actor/entropy": 0.009}],
    "entropy_falling": [*steady("actor/entropy", 0.9, 5), *steady("actor/entropy", 0.29, 3)],
    "kl_high": [{"actor/kl": 0.51}],
    "kl_rising": [*steady("actor/kl", 0.02, 15), *steady("actor/kl", 0.21, 5)],
    "equal_rewards": steady("groups/zero_variance_frac", 0.81, 5),
    "no_response_ends": steady("response_length/clip_ratio", 0.95, 2),
    "responses_truncated": steady("response_length/clip_ratio", 0.31, 3),
    "segment_missing": [{"egpo/segment/coverage": 0.09}],
    "environment_failing": [
        {"reward/error_frac": 0.07, "reward/reason/environment_died": 0.02, "reward/reason/environment_timeout": 0.04}
    ],
    "reward_failing": [{"reward/error_frac": 0.06}],
    "reward_flat": [
        {"critic/score/mean": 0.3 + 0.03 * math.sin(2.4 * step), "groups/zero_variance_frac": 0.6}
        for step in range(50)
    ],
}  # fmt: skip


def test_every_fault_of_an_environment_is_counted_as_one_and_not_as_the_checkers():
    for reason in FAULT_REASONS:
        (note,) = observed([{"reward/error_frac": 1.0, f"reward/reason/{reason}": 1.0}])
        assert note.rule == "environment_failing"
        assert "sandbox" not in note.advice
    both = {"reward/error_frac": 0.3, "reward/reason/environment_died": 0.1, "reward/reason/timeout": 0.2}
    assert [note.rule for note in observed([both])] == ["environment_failing", "reward_failing"]
    assert "20%" in observed([both])[1].message


def exploded(norms):
    return [note.step for note in observed([{"actor/grad_norm": norm} for norm in norms]) if "exploded" in note.rule]


def test_a_large_first_gradient_of_a_supervised_run_is_no_explosion():
    """Norms of the first steps of supervised training of a small model."""
    assert exploded([10.9, 7.2, 5.1, 3.9, 3.1, 2.6, 2.2, 2.0, 1.9, 1.8]) == []


def test_an_explosion_is_told_at_its_step():
    assert exploded([0.4, 0.6, 0.5, 0.7, 0.4, 0.5, 25.0, 300.0]) == [7]
    assert exploded([10.9, 7.2, 5.1, 3.9, 3.1, 2.6, 40.0]) == [7]
    assert exploded([0.4, 1e5]) == [2]
    assert exploded([float("inf")]) == [1]


def test_every_rule_has_a_case_here():
    assert list(SICK) == [rule.name for rule in RULES]


@pytest.mark.parametrize("rule", SICK)
def test_a_sick_run_is_told_at_once_and_only_that(rule):
    history = SICK[rule]
    assert [(note.step, note.rule) for note in observed(history)] == [(len(history), rule)]
    assert [note.rule for note in observed([*history, *history])].count(rule) == 1


@pytest.mark.parametrize(
    "history",
    [
        [{"actor/entropy": 0.01}],
        [*steady("actor/entropy", 0.9, 5), *steady("actor/entropy", 0.31, 3)],
        [{"actor/entropy": 0.9 * 0.96**step} for step in range(60)],
        [*steady("actor/grad_norm", 0.5, 5), {"actor/grad_norm": 10}],
        steady("actor/grad_norm", 12.0, 30),
        [{"actor/grad_norm": 5e-4, "critic/score/mean": 0.1}] * 4,
        [{"actor/grad_norm": 5.0, "train/loss": 6.0}] * 9,
        [{"actor/kl": 0.0}, *steady("actor/kl", 0.09, 30)],
        steady("groups/zero_variance_frac", 0.8, 50),
        steady("critic/score/mean", 0.3, 80),
        [{"critic/score/mean": 0.005 * step, "groups/zero_variance_frac": 0.6} for step in range(80)],
        [{"critic/score/mean": 0.3 + 0.1 * (step // 10 % 2), "groups/zero_variance_frac": 0.6} for step in range(50)],
    ],
)  # fmt: skip
def test_a_near_miss_is_none(history):
    assert observed(history) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_a_danger(value):
    (note,) = observed([{"actor/grad_norm": value}])
    assert (note.rule, note.severity) == ("grad_norm_exploded", "danger")


def test_notes_say_numbers():
    (note,) = observed(SICK["entropy_falling"])
    assert "from 0.9 to 0.29 nats within 3 steps" in note.message
    (note,) = observed(SICK["reward_flat"])
    assert re.search(r"stayed at 0\.3 for 50 steps \(change \S+, 95 % interval -\S+ to \+\S+\)", note.message)


def test_steps_come_in_order():
    health = Health()
    health.observe(2, {})
    with pytest.raises(ValueError, match="step 2 was added after step 2"):
        health.observe(2, {})


SETTINGS = [
    pytest.param(setting, id=f"{rule.name}-{setting}")
    for rule in RULES
    for setting in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+(?:=[^`]+)?)`", rule.advice)
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_advice_names_settings_that_exist(setting):
    needed = ["model.path=tiny", "task.name=countdown"]
    if "=" in setting:
        load_config(overrides=[*needed, setting])
        return
    value = load_config(overrides=needed)
    for part in setting.split("."):
        value = getattr(value, part)


def test_every_rule_gives_advice():
    assert all("`" in rule.advice for rule in RULES)


def test_notes_read_back_and_garbage_is_named(tmp_path):
    path = tmp_path / "health.jsonl"
    assert read_notes(path) == []
    stream = NoteStream(path)
    stream.forget_after(3)
    notes = [Note(step, "x", "danger", "m", "a") for step in (1, 4, 4, 6)]
    for note in notes:
        stream.append(note)
    stream.forget_after(4)
    assert read_notes(path) == notes[:3]
    path.write_text('{"step": 1}\n')
    with pytest.raises(InputError, match="line 1: the line is not a health note"):
        read_notes(path)
    with pytest.raises(EgpoError, match="line 1"):
        stream.forget_after(4)
    path.write_text('{"step": "4", "rule": "x", "severity": "danger", "message": "m", "advice": "a"}\n')
    with pytest.raises(InputError, match=r"line 1: the line is not a health note \(its step is '4'"):
        stream.forget_after(4)


def test_a_long_run_keeps_no_more_than_the_rules_look_back():
    """All values of all steps once were kept: a run took 2 MB more after every 1,000 steps."""
    history = History()
    for step in range(1, 1001):
        history.add(step, {"a": float(step)})
    assert history.last("a", LONGEST) == [float(step) for step in range(951, 1001)]
    assert len(history._values["a"]) == LONGEST
    with pytest.raises(ValueError, match="only the last 50"):
        history.last("a", LONGEST + 1)
