"""Who sits where: rows of a prompt side by side, every slot used by one row at a time, nobody forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from egpo.local.sampling.cuda.row_scheduler import FRESH, RowScheduler, bucket, tiles


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 12), st.randoms(use_true_random=False))
def test_every_row_gets_a_slot_of_its_own_and_has_its_turn(prompt_of, slots, random):
    rows = random.sample(range(100), len(prompt_of))
    seats = RowScheduler(rows, prompt_of, slots)
    seen = {}
    while seats.taken:
        assert len({seat.slot for seat in seats.taken}) == len(seats.taken) <= slots
        assert all(seat.slot < slots for seat in seats.taken)
        assert [seat.prompt for seat in seats.taken] == sorted(seat.prompt for seat in seats.taken)
        seats.advance(3)
        for seat in seats.taken:
            seen[seat.row] = seen.get(seat.row, 0) + 3
            assert seat.own == seen[seat.row]
        over = [random.random() < 0.5 for _ in seats.taken]
        assert seats.leave(over) == any(over)
        seats.seat_waiting()
    assert sorted(seen) == sorted(rows)


def test_a_row_that_stays_keeps_its_slot_and_knows_where_it_stood():
    seats = RowScheduler([7, 8, 9], [0, 1, 2], slots=2)
    slots = [seat.slot for seat in seats.taken]
    seats.advance(5)
    seats.leave([True, False])
    seats.seat_waiting()
    assert [(seat.row, seat.slot, seat.own, seat.stood) for seat in seats.taken] == [
        (8, slots[1], 5, 1),
        (9, slots[0], 0, FRESH),
    ]
    assert seats.steps_left(limit=16) == 16


def test_the_state_of_rows_past_the_last_seat_is_over():
    seats = RowScheduler([3, 4], [0, 0], slots=2)
    row, prompt, tile, slot, own, place, position, live = seats.state([10], tile=16, rows=4)
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
