"""The live view: fits the screen, says what is known, and is plain where nobody watches."""

import errno
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from egpo.runs import LiveView, Note
from egpo.runs.formatting import format_duration, format_number, sparkline
from egpo.runs.live import panel

METRICS = {
    "critic/score/mean": 0.4312, "critic/acc/mean": 0.25, "actor/entropy": 0.95, "entropy/thinking": 1.203,
    "entropy/answer": 0.31, "entropy/response": 0.951, "actor/kl": 0.0012, "actor/grad_norm": 0.123,
    "groups/zero_variance_frac": 0.25, "response_length/mean": 87.4, "response_length/clip_ratio": 0.03,
}  # fmt: skip
TIMINGS = {"timing_s/step": 4.0, "perf/throughput": 12345.6}
NOTE = Note(2, "kl_high", "danger", "KL from the starting policy is 0.7 nats a token", "lower `update.lr`")


def plain_view(total=100, **more):
    console = Console(file=io.StringIO(), width=80, **more)
    return LiveView(total, "a-run", console=console, clock=lambda: 0.0), console.file


@pytest.fixture(autouse=True)
def _a_persons_terminal(monkeypatch):
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def screen(view, width=80):
    """What the panel looks like at this moment."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(panel(view._progress, "sample", 3.2))
    return console.file.getvalue()


def terminal_view(total=100):
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    return LiveView(total, "a-run", console=console, clock=lambda: 0.0), console.file


def test_the_panel_says_everything_in_80_columns():
    view, _ = terminal_view()
    for step in range(1, 38):
        view.show(step, METRICS | ({"val-core/countdown/acc/mean@1": 0.39} if step == 30 else {}), TIMINGS)
    view.note(NOTE)
    text = screen(view)
    for part in (
        "a-run", "step 37 of 100", "4:12 left", "sample 3 s", "reward    0.431  ▄", "train 0.250",
        "validation 0.390 (step 30)", "thinking 1.203", "answer 0.310", "response 0.951", "KL 0.0012",
        "gradient 0.123", "zero variance 25%", "mean 87", "truncated 3%", "tokens/s 12,346",
        "! step 2: KL from the starting policy is 0.7 nats a token. Try: lower ", "\n  `update.lr`.",
    ):  # fmt: skip
        assert part in text, part
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


@given(
    st.dictionaries(st.sampled_from([*METRICS, "train/loss", "val/loss", "other"]), st.floats()),
    st.integers(20, 200),
    st.integers(0, 10**6),
)
def test_no_line_is_ever_wider_than_the_screen(metrics, width, step):
    view, _ = terminal_view(10**6)
    view.show(step, metrics, {})
    view.show(step + 1, metrics, {})
    assert max(map(len, screen(view, width).splitlines())) <= width


def test_before_the_first_step_there_is_a_panel_without_figures():
    view, _ = terminal_view()
    assert "step 0 of 100" in screen(view)
    assert "reward" not in screen(view)


def test_a_row_that_was_shown_stays():
    view, _ = terminal_view()
    view.show(1, METRICS, TIMINGS)
    height = screen(view).count("\n")
    view.show(2, {"actor/grad_norm": math.nan}, {})
    assert screen(view).count("\n") == height


def test_supervised_training_shows_its_losses():
    view, _ = terminal_view()
    view.show(1, {"train/loss": 2.5, "val/loss": 2.25}, TIMINGS)
    view.show(2, {"train/loss": 2.4}, TIMINGS)
    assert "loss      train 2.400          validation 2.250" in screen(view)
    assert "reward" not in screen(view)


def test_on_a_terminal_it_is_drawn_in_place_and_its_end_stays():
    view, file = terminal_view(2)
    with view:
        view.stage("sample")
        view.show(1, METRICS, TIMINGS)
        view.say("checkpoint saved")
        view.show(2, METRICS, TIMINGS)
    text = file.getvalue()
    assert "\x1b[?25h" in text, "the cursor is back"
    assert "checkpoint saved" in text
    assert "done" in text


def test_elsewhere_every_step_is_one_line():
    view, file = plain_view()
    with view:
        view.stage("sample")
        for step in (9, 10):
            view.show(step, METRICS, TIMINGS)
        view.note(NOTE)
        view.say("saved [checkpoint]")
    title, *steps, note, said = file.getvalue().splitlines()
    assert title == "a-run"
    assert [line[:12] for line in steps] == ["step   9/100", "step  10/100"]
    assert len({len(line) for line in steps}) == 1, "aligned"
    assert "reward  0.431  " in steps[0]
    assert "kl  0.001" in steps[0]
    assert steps[0].endswith("left    6:04")
    assert note == str(NOTE)
    assert said == "saved [checkpoint]"
    assert "\x1b" not in file.getvalue()


def test_the_time_left_counts_what_lies_between_steps_but_not_the_loading_before_them():
    now, console = [0.0], Console(file=io.StringIO(), width=200)
    view = LiveView(10, "a-run", console=console, clock=lambda: now[0])
    left = []
    with view:
        for elapsed in (60.0, 4.0, 28.0):  # loading and a step; a step; a checkpoint and a step
            now[0] += elapsed
            view.show(len(left) + 1, METRICS, TIMINGS)
            left.append(view._progress.left_s)
    assert left == [9 * 4, 8 * 4, 7 * 12]


def test_a_checkpoint_now_and_then_does_not_make_the_time_left_jump():
    now, num_steps, every = [0.0], 1000, 50
    view = LiveView(num_steps, "a-run", console=Console(file=io.StringIO(), width=200), clock=lambda: now[0])
    with view:
        for step in range(1, num_steps + 1):
            now[0] += 4.0
            view.show(step, METRICS, TIMINGS)
            now[0] += 60.0 * (step % every == 0)
            if step > every:
                truth = 4.0 * (num_steps - step) + 60.0 * (num_steps // every - step // every)
                assert abs(view._progress.left_s - truth) <= max(0.15 * truth, 120.0)


def test_validation_stands_in_the_line_of_its_step():
    view, file = plain_view()
    view.show(1, {"val-core/a/acc/mean@1": 0.25, "val-core/b/acc/mean@1": 0.75, "val-core/a/score/mean@1": 9.0}, {})
    view.show(2, {"critic/score/mean": math.nan}, {})
    first, second = file.getvalue().splitlines()
    assert first.endswith("validation 0.500")
    assert "reward" not in second


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_ci_and_dumb_terminals_get_plain_lines(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    view, file = terminal_view()
    with view:
        view.show(1, METRICS, TIMINGS)
    assert "╭" not in file.getvalue()
    assert "step   1/100" in file.getvalue()


def test_no_color_is_honoured(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    view, file = terminal_view()
    with view:
        view.show(1, METRICS, TIMINGS)
    assert "╭" in file.getvalue()
    assert "\x1b[36m" not in file.getvalue()
    assert "38;" not in file.getvalue()


@given(st.lists(st.floats(-1e9, 1e9), max_size=100), st.integers(1, 50))
def test_a_sparkline_is_as_long_as_it_may_and_keeps_the_order(values, width):
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)
    if 2 <= len(values) <= width and max(values) > min(values):
        assert line[values.index(max(values))] == "█"
        assert line[values.index(min(values))] == "▁"
        ranked = [bar for _, bar in sorted(zip(values, line, strict=True))]
        assert ranked == sorted(ranked)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0.4, "0:00"), (67, "1:07"), (724, "12:04"), (10931, "3:02:11")]
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.0, "0.000"), (0.1234, "0.123"), (1.2e-5, "1.2e-05"), (-2e8, "-2.0e+08")]
)
def test_figures_never_round_to_nothing(value, text):
    assert format_number(value) == text


class FullDevice(io.StringIO):
    """Takes a few lines."""

    def __init__(self, lines):
        super().__init__()
        self.lines = lines

    def flush(self):
        if self.getvalue().count("\n") > self.lines:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_screen_that_fails_is_noted_and_not_drawn_to_again():
    view = LiveView(3, "title", console=Console(file=FullDevice(1), force_terminal=False))
    with view:
        view.say("one more")
        assert view.failure == "No space left on device"
        view.show(1, {}, {})
