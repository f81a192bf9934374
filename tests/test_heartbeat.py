"""A line is printed after some time without output, and none while there is output."""

from egpo.heartbeat import Heartbeat
from tests.waiting import becomes_true


def test_a_silent_block_is_reported_until_it_ends():
    lines = []
    with Heartbeat(lines.append, "loading", period_s=0.01) as beat:
        assert becomes_true(lambda: len(lines) >= 2)
        beat.doing = "sampling"
        assert becomes_true(lambda: lines[-1].startswith("sampling, "))
    count = len(lines)
    assert lines[0].startswith("loading, ")
    assert lines[0].endswith(" s")
    assert not beat._thread.is_alive()
    assert len(lines) == count


def test_output_postpones_the_next_line():
    """With a clock of its own: 10 s pass, and a line was printed after 9 of them."""
    now, lines = [0.0], []
    beat = Heartbeat(lines.append, "x", period_s=5.0, clock=lambda: now[0])
    now[0] = 9.0
    beat.spoke()
    now[0] = 10.0
    assert beat._clock() - beat._last < beat._period_s


def test_a_closed_output_ends_the_thread():
    def fail(line):
        raise BrokenPipeError

    with Heartbeat(fail, period_s=0.01) as beat:
        assert becomes_true(lambda: not beat._thread.is_alive())
