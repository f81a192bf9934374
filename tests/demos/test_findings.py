"""How a demo compares its evaluations."""

from dataclasses import dataclass

import pytest

from egpo.demos.findings import against_base, between_estimators, gains
from egpo.evals.responses import SampleRecord

NUM_PROBLEMS = 40


@dataclass(frozen=True)
class Answers:
    label: str
    samples: tuple[SampleRecord, ...]


def answers(label, num_right, length=40):
    """One response to each problem: the first so many are right, and all are about as long."""
    samples = (
        SampleRecord(
            problem=f"p{place}",
            sample=0,
            input="",
            output="",
            gts="",
            score=float(place < num_right),
            acc=place < num_right,
            reason="",
            num_tokens=length + place % 3,
        )
        for place in range(NUM_PROBLEMS)
    )
    return Answers(label, tuple(samples))


def evaluations(sampled, greedy, length):
    """The base has 10 of 40 right, in 40 tokens."""
    return {
        manner: {"egpo-tiny": answers("base", 10), "grpo": answers("grpo", right, length)}
        for manner, right in (("sampled", sampled), ("greedy", greedy))
    }


def described(sampled, greedy, length=40):
    (gain,) = gains(evaluations(sampled, greedy, length))
    return gain.described


def test_what_kind_of_gain_it_was():
    assert "did not rise" in described(11, 30)
    assert "no evidence of new abilities" in described(30, 11)
    assert "longer: the model searches more" in described(30, 30, length=60)
    assert "not become measurably longer" in described(30, 30, length=40)
    assert "shorter" in described(30, 30, length=20)


def test_a_loss_is_no_gain():
    assert "did not rise" in described(0, 0)


def test_each_estimator_is_held_against_the_base():
    found = list(against_base(evaluations(30, 10, 40)))
    assert [(one.manner, one.other, one.difference.verdict) for one in found] == [
        ("sampled", "grpo", "better"),
        ("greedy", "grpo", "not distinguishable"),
    ]
    assert found[0].difference.delta.value == pytest.approx(0.5)


def test_every_pair_of_estimators_once_and_never_the_base():
    by_model = {name: answers(name, 20) for name in ("egpo-tiny", "grpo", "egpo", "egpo_calibrated")}
    pairs = [(one.base, one.other) for one in between_estimators({"sampled": by_model})]
    assert pairs == [("grpo", "egpo"), ("grpo", "egpo_calibrated"), ("egpo", "egpo_calibrated")]
