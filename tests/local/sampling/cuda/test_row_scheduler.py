"""Rows of a prompt stand side by side, every slot is used by one row at a time, and every row is sampled."""

from hypothesis import given
from hypothesis import strategies as st

from egpo.local.sampling.cuda.row_scheduler import NEW_ROW, RowScheduler, bucket, tiles


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 12), st.randoms(use_true_random=False))
def test_every_row_gets_a_slot_of_its_own_and_has_its_turn(prompt_of, slots, random):
    rows = random.sample(range(100), len(prompt_of))
    scheduler = RowScheduler(rows, prompt_of, slots)
    seen = {}
    while scheduler.active:
        assert len({row.slot for row in scheduler.active}) == len(scheduler.active) <= slots
        assert all(row.slot < slots for row in scheduler.active)
        assert [row.prompt for row in scheduler.active] == sorted(row.prompt for row in scheduler.active)
        scheduler.advance(3)
        for row in scheduler.active:
            seen[row.row] = seen.get(row.row, 0) + 3
            assert row.own == seen[row.row]
        over = [random.random() < 0.5 for _ in scheduler.active]
        assert scheduler.release(over) == any(over)
        scheduler.admit_waiting()
    assert sorted(seen) == sorted(rows)


def test_a_row_that_stays_keeps_its_slot_and_keeps_its_last_place():
    scheduler = RowScheduler([7, 8, 9], [0, 1, 2], slots=2)
    slots = [row.slot for row in scheduler.active]
    scheduler.advance(5)
    scheduler.release([True, False])
    scheduler.admit_waiting()
    assert [(row.row, row.slot, row.own, row.last_place) for row in scheduler.active] == [
        (8, slots[1], 5, 1),
        (9, slots[0], 0, NEW_ROW),
    ]
    assert scheduler.steps_left(limit=16) == 16


def test_the_state_of_rows_past_the_last_active_row_is_over():
    scheduler = RowScheduler([3, 4], [0, 0], slots=2)
    row, prompt, tile, slot, own, place, position, live = scheduler.state([10], tile=16, rows=4)
    assert (row, prompt, tile, live) == ([3, 4, 0, 0], [0, 0, 0, 0], [2, 0, 0, 0], [1, 1, 0, 0])
    assert (slot, own, place, position) == ([0, 1, 0, 0], [0] * 4, [0] * 4, [9, 9, 0, 0])


@given(st.lists(st.integers(0, 5), max_size=50).map(sorted), st.integers(1, 16))
def test_tiles_cover_every_row_once_and_hold_one_prompt(prompts, size):
    counts = tiles(prompts, size)
    assert sum(counts) == len(prompts)
    for begin, count in enumerate(counts):
        assert count <= size
        assert len(set(prompts[begin : begin + count])) <= 1
        assert not any(counts[begin + 1 : begin + count])


def test_few_sizes_of_batches_and_none_far_too_large():
    sizes = {bucket(rows, 256) for rows in range(1, 257)}
    assert sizes == {8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256}
    assert all(rows <= bucket(rows, 256) <= max(8, 1.5 * rows) for rows in range(1, 257))
