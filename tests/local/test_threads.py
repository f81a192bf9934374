"""Two cores compute what one computes, and the same every time."""

import threading

import pytest
import torch

from egpo.local.step import step
from egpo.local.threads import PartCancelledError, num_worker_threads, parallel_map, raise_if_cancelled
from tests.local.device import ON_GPU
from tests.local.test_step import opened

pytestmark = pytest.mark.filterwarnings("ignore:.*neither.*:egpo.errors.EgpoWarning")


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_parts():
    assert parallel_map(lambda part: part * 2, list(range(5))) == [0, 2, 4, 6, 8]
    assert torch.get_num_threads() == 2


def test_each_part_has_one_thread_and_the_callers_gradient_switch():
    def seen(part):
        return torch.get_num_threads(), torch.is_grad_enabled()

    with torch.no_grad():
        assert parallel_map(seen, [1, 2]) == [(1, False)] * 2
    assert parallel_map(seen, [1, 2]) == [(1, True)] * 2


def test_no_parts_have_no_results():
    assert parallel_map(lambda part: part, []) == []


def test_a_single_part_has_all_threads():
    assert parallel_map(lambda part: torch.get_num_threads(), [1]) == [2]


def test_an_error_in_a_part_reaches_the_caller_and_ends_the_others():
    ended = threading.Event()

    def work(part):
        if part == 1:
            raise ZeroDivisionError
        try:
            while True:
                raise_if_cancelled()
        except PartCancelledError:
            ended.set()
            raise

    with pytest.raises(ZeroDivisionError):
        parallel_map(work, [0, 1])
    assert ended.is_set()
    assert torch.get_num_threads() == 2


def test_outside_of_parts_nothing_is_cancelled():
    raise_if_cancelled()


def taken(model_folder, *overrides):
    run = opened(model_folder, "rollout.prompts=6", "rollout.n=8", "update.micro_tokens=100", *overrides)
    outcomes = [step(run, number) for number in range(2)]
    weights = torch.cat([weight.detach().flatten() for weight in run.policy.model.parameters()])
    return [outcome.metrics for outcome in outcomes], [outcome.batch.rollouts.texts for outcome in outcomes], weights


def test_a_step_on_two_cores_repeats_to_the_bit_and_equals_one_core(model_folder):
    metrics, texts, weights = taken(model_folder)
    again = taken(model_folder)
    assert (again[0], again[1]) == (metrics, texts)
    assert torch.equal(again[2], weights)
    torch.set_num_threads(1)
    _, alone_texts, alone_weights = taken(model_folder)
    assert alone_texts[0] == texts[0]
    torch.testing.assert_close(alone_weights, weights, atol=1e-3, rtol=0)


@pytest.mark.skipif(ON_GPU, reason="a GPU's work is not cut in two")
def test_bfloat16_weights_with_masters_stay_together(model_folder):
    """Their gradients pass through hooks of the backward pass."""
    assert num_worker_threads(opened(model_folder).policy) == 2
    assert num_worker_threads(opened(model_folder, "model.dtype=bfloat16").policy) == 1


def test_a_large_model_stays_together(model_folder, monkeypatch):
    monkeypatch.setattr("egpo.local.threads._MOST_GRADIENT_BYTES", 1000)
    assert num_worker_threads(opened(model_folder).policy) == 1


def test_a_machine_without_a_thread_to_give_works_in_the_one_there_is(monkeypatch):
    """It was a traceback. Each part is worked on once: parts add to gradients."""
    worked = []
    real, started = threading.Thread.start, []

    def start_one(thread):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    threads = torch.get_num_threads()
    assert parallel_map(lambda part: worked.append(part) or 2 * part, [1, 2, 3]) == [2, 4, 6]
    assert sorted(worked) == [1, 2, 3]
    assert torch.get_num_threads() == threads
