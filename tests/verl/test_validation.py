"""A validation under verl is over the responses that could be judged: verl's own metrics, without a cluster."""

from statistics import fmean
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

from verl.trainer.ppo.v1 import PPOTrainerSync  # noqa: E402

from egpo.verl.trainers import EgpoSync  # noqa: E402

SOURCES = ("openai/gsm8k", "toolbox")
NUM = 4


def metrics_of(rows, active=True, kind=EgpoSync):
    """The metrics of a validation. A row is (source, problem, accuracy, reward, whether it failed)."""
    trainer = object.__new__(kind)
    trainer.plan = SimpleNamespace(active=active)
    information = {
        "reward": [reward for _, _, _, reward, _ in rows],
        "acc": [accuracy for _, _, accuracy, _, _ in rows],
        "failed": [float(failed) for *_, failed in rows],
        "reason": ["scored"] * len(rows),
    }
    expected = {(source, uid): NUM for source, uid, *_ in rows}
    sources, uids = [row[0] for row in rows], [row[1] for row in rows]
    return trainer._val_metrics_update(sources, uids, information, [2] * len(rows), expected_acc_counts=expected)


@st.composite
def validations(draw, failing=(False, True)):
    return [
        (source, f"{source} {problem}", draw(st.sampled_from((0.0, 1.0))), draw(st.sampled_from((0.0, 0.5, 1.0))),
         draw(st.sampled_from(failing)))
        for source in SOURCES
        for problem in range(draw(st.integers(1, 3)))
        for _ in range(NUM)
    ]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(validations(), st.sampled_from((0.0, 1.0, -3.0)))
def test_what_a_failed_response_scored_does_not_matter(rows, other):
    changed = [(source, uid, other, other, True) if row[-1] else row for row in rows for source, uid, *_ in [row]]
    found = metrics_of(rows)
    assert found == metrics_of(changed)
    assert set(found) <= set(metrics_of(rows, kind=PPOTrainerSync)) | {f"val-aux/{one}/error_frac" for one in SOURCES}
    for source in SOURCES:
        own = [row for row in rows if row[0] == source]
        judged = [row for row in own if not row[-1]]
        assert found[f"val-aux/{source}/error_frac"] == pytest.approx(1 - len(judged) / len(own))
        for name, place in ((f"val-core/{source}/acc/mean@{NUM}", 2), (f"val-aux/{source}/reward/mean@{NUM}", 3)):
            assert (name in found) == bool(judged)
            assert not judged or found[name] == pytest.approx(fmean(row[place] for row in judged))


@settings(max_examples=10, deadline=None)
@given(validations(failing=(False,)))
def test_without_failures_the_metrics_are_verls_own(rows):
    own = metrics_of(rows, kind=PPOTrainerSync)
    assert metrics_of(rows) == own | {f"val-aux/{source}/error_frac": 0.0 for source in SOURCES}


@settings(max_examples=10, deadline=None)
@given(validations())
def test_a_run_that_uses_nothing_of_ours_has_verls_own_metrics(rows):
    assert metrics_of(rows, active=False) == metrics_of(rows, kind=PPOTrainerSync)
