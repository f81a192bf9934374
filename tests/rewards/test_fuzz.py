"""Every text reward under any text: no exception, a documented reason, a reward in range, linear time, bounded memory.

The rewards under test are the table of `benchmarks/fuzz_rewards.py`, which is also the long run of the same checks.
"""

import importlib.util
import sys
import time
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "fuzz_rewards.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_rewards", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


fuzz_rewards = _load()
SUBJECTS = {subject.name: subject for subject in fuzz_rewards.subjects()}

# hypothesis leaves lone surrogates out unless told.
ANY_TEXT = st.text(st.characters(), max_size=200) | st.text(
    st.characters(categories=["Cs", "Nd", "Cc", "Sm"]), max_size=40
)
SOILED = st.lists(st.sampled_from(fuzz_rewards.FRAGMENTS + fuzz_rewards.SEEDS) | ANY_TEXT, max_size=12).map("".join)


def assert_sound(name: str, text: str, *, with_memory: bool = False) -> None:
    subject = SUBJECTS[name]
    subject.faults.clear()
    fuzz_rewards.examine(subject, text, with_memory=with_memory)
    assert subject.faults == []


@pytest.mark.parametrize("name", SUBJECTS)
@settings(deadline=None, max_examples=200)
@given(text=SOILED)
def test_any_text(name: str, text: str) -> None:
    assert_sound(name, text)


@pytest.mark.parametrize("name", SUBJECTS)
def test_hostile_patterns(name: str) -> None:
    for text in fuzz_rewards.hostile(20_000):
        assert_sound(name, text)


@pytest.mark.parametrize("name", SUBJECTS)
def test_ten_million_characters(name: str) -> None:
    for text in islice(fuzz_rewards.hostile(10_000_000), 0, None, 100):
        assert_sound(name, text, with_memory=True)


def test_mutants_through_everything_and_some_through_the_math_workers() -> None:
    found = [*fuzz_rewards.subjects(), *fuzz_rewards.checked_subjects()]
    for number, text in enumerate(fuzz_rewards.mutants(seed=1, count=3000)):
        for subject in found if number % 100 == 0 else found[:-1]:
            fuzz_rewards.examine(subject, text)
    assert [subject.faults for subject in found] == [[]] * len(found)
    assert all(subject.count >= 30 for subject in found)


def test_the_generator_reaches_right_and_wrong_answers() -> None:
    # A fuzzer whose strings all fail at the first check would prove little.
    for subject in fuzz_rewards.subjects():
        for text in fuzz_rewards.mutants(seed=2, count=2000):
            fuzz_rewards.examine(subject, text)
        assert subject.seen["correct"] > 0, subject.name
        # Without a sandbox the code reward has a program or none.
        assert len(subject.seen) >= (2 if subject.name == "code extraction" else 5), subject.seen


def test_the_extraction_of_programs_and_the_call_of_hosts_are_under_test() -> None:
    assert {"code extraction", "score function_calling", "score countdown", "score gsm8k"} <= SUBJECTS.keys()


def test_the_fuzzer_sees_what_is_wrong() -> None:
    def broken(text: str) -> fuzz_rewards.Verdict:
        if "x" in text:
            raise RecursionError(text)
        return fuzz_rewards.Verdict(2.0, True, "made up")

    subject = fuzz_rewards.Subject("broken", broken, {"correct": ""})
    for text in ("x", "y"):
        fuzz_rewards.examine(subject, text)
    assert [fault.split()[0] for fault in subject.faults] == ["RecursionError:", "undocumented", "reward"]


def test_the_fuzzer_sees_what_is_slow_and_large() -> None:
    def wasteful(text: str) -> fuzz_rewards.Verdict:
        start = time.thread_time()
        while time.thread_time() - start < 0.1:
            copies = [text[at:] for at in range(1000)]
        return fuzz_rewards.Verdict(0.0 * len(copies), False, "wrong")

    subject = fuzz_rewards.Subject("wasteful", wasteful, {"wrong": ""})
    fuzz_rewards.examine(subject, "a" * 10_000, with_memory=True)
    assert len(subject.faults) == 2
    assert "ms per 10 kB" in subject.faults[0]
    assert "MB at its peak" in subject.faults[1]
