"""The page in a real browser: curves, the browser of rollouts by clicks and keys, hostile text, sizes and colours."""

import json
import struct

import pytest

from egpo.reports import write_report
from tests.reports.folders import HOSTILE, note, write_run

ACTIVE = ".option[aria-selected=true]"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two runs with everything that a report can show."""
    place = tmp_path_factory.mktemp("runs")
    first = write_run(place / "first", notes=[note(), note("entropy_falling", "warning")])
    second = write_run(place / "second <b>bold", estimator="egpo", dumps=(1, 12), notes=[note()])
    (first / "evals").mkdir()
    (first / "evals" / "probe.json").write_text(json.dumps({"pass_rates": [0, 0.5, 1]}))
    return write_report([first, second])


@pytest.fixture
def tab(browser, page):
    with browser.opened(page) as tab:
        yield tab
        assert tab.complaints() == []


def test_runs_that_were_really_trained(browser, trained_runs):
    with browser.opened(write_report(trained_runs)) as tab:
        assert tab.count("#charts .chart") >= 10
        assert tab.count("#charts .chart:first-child .curve .line") == 2
        # P * G responses of the last step; each as the model wrote it.
        assert tab.count(".option") == 6
        assert tab.count(".token") == 6
        assert tab.complaints() == []


def test_curves_of_every_kind_are_drawn(tab):
    titles = tab.evaluate("[...document.querySelectorAll('#charts h3')].map((e) => e.textContent)")
    assert titles == [
        "Reward",
        "Training accuracy",
        "Validation accuracy",
        "Entropy, thinking",
        "Entropy, answer",
        "Entropy, response",
        "KL from the reference",
        "Gradient norm",
        "Informative groups",
        "Response length",
        "Truncated responses",
    ]
    assert tab.count("#charts .curve .line") == 2 * len(titles)
    shown = tab.evaluate("[...document.querySelectorAll('#charts .line')].map((e) => e.getTotalLength())")
    assert min(shown) > 100


def test_the_legend_hides_and_shows_a_run(tab):
    tab.click("#legend button:nth-child(2)")
    assert tab.count("#charts .curve[data-run='1']") == 0
    assert tab.count("#charts .curve[data-run='0']") == 11
    tab.click("#legend button:nth-child(1)")
    assert tab.count("#charts .curve") == 0
    tab.click("#legend button:nth-child(2)")
    assert tab.count("#charts .curve[data-run='1']") == 11


def test_smoothing_keeps_the_raw_curve_in_sight(tab):
    assert tab.count("#charts .raw") == 0
    tab.choose("#smoothing", "5")
    assert tab.count("#charts .chart:first-child .raw") == 2


def test_pointing_at_a_chart_shows_the_values_of_its_step(tab):
    tab.point_at("#charts .plot")
    step, first, _ = tab.text("#tooltip").splitlines()
    number = int(step.removeprefix("step "))
    assert 1 <= number <= 12
    assert first == f"first {number / 12:.4f}".rstrip("0").rstrip(".")
    assert tab.count("#charts .cursor line") == 11


def test_a_chart_answers_to_keys_and_tells_its_ends(tab):
    tab.evaluate("document.querySelector('#charts .plot').focus()")
    tab.press("End")
    assert tab.text("#tooltip").startswith("step 12")
    tab.press("ArrowLeft")
    assert tab.text("#tooltip").startswith("step 11")
    label = tab.evaluate("document.querySelector('#charts .plot').getAttribute('aria-label')")
    assert label.startswith("Reward: first from 0.0833 at step 1 to 1 at step 12; second")


def test_any_other_metric_can_be_drawn(tab):
    tab.click(".other summary")
    tab.choose("#other-metric", "actor/lr")
    assert tab.count("#other-chart .curve .line") == 2


def test_responses_by_click_and_by_key(tab):
    assert tab.evaluate("document.querySelector('[aria-label=Step]').value") == "12"
    assert tab.count(".option") == 1 + len(HOSTILE)
    tab.click("#response-3")
    assert "sample 4" in tab.text(".reader h3")
    tab.press("j")
    assert "sample 5" in tab.text(".reader h3")
    tab.press("k")
    tab.press("ArrowUp")
    assert "sample 3" in tab.text(".reader h3")
    assert "cut off" in tab.text(".verdict")
    tab.press("Home")
    tab.press("ArrowUp")
    assert "sample 1" in tab.text(".reader h3")
    tab.press("End")
    tab.press("j")
    assert f"sample {1 + len(HOSTILE)}" in tab.text(".reader h3")


def test_steps_by_key_and_by_button_stop_at_the_ends(tab):
    steps = []
    for act in (lambda: tab.press("["), lambda: tab.press("["), lambda: tab.press("["), lambda: tab.press("]")):
        act()
        steps.append(tab.evaluate("document.querySelector('[aria-label=Step]').value"))
    tab.click("[aria-label='Later step']")
    steps.append(tab.evaluate("document.querySelector('[aria-label=Step]').value"))
    assert steps == ["5", "1", "1", "5", "12"]


def test_another_run_is_opened_at_the_same_step_or_at_its_last(tab):
    tab.press("[")  # step 5, which the second run has not
    tab.choose("[aria-label=Source]", "1")
    assert tab.evaluate("document.querySelector('[aria-label=Step]').value") == "12"
    assert tab.count(".option") == 1 + len(HOSTILE)


def test_filters_by_verdict_and_reason(tab):
    tab.choose("[aria-label=Verdict]", "right")
    assert tab.count(".option") == 1
    assert "✓ right" in tab.text(".reader-head")
    tab.choose("[aria-label=Reason]", "wrong_value")
    assert tab.text(".reader") == "No responses match the filters."
    tab.press("j")
    tab.choose("[aria-label=Verdict]", "wrong")
    assert tab.count(".option") == len(HOSTILE) / 2
    assert "wrong_value" in tab.text(ACTIVE)


def test_a_token_without_text_is_a_narrow_mark(tab):
    """A stop token has no text. Its mark was a square of 34 pixels: it had the padding of the page's empty notices."""
    width, height, line = tab.evaluate(
        "(() => { const e = document.querySelector('.token.empty'), b = e.getBoundingClientRect();"
        " return [b.width, b.height, parseFloat(getComputedStyle(e).lineHeight)]; })()"
    )
    assert 2 <= width <= 8
    assert 8 <= height <= line


def test_tokens_are_shaded_and_tell_their_entropy(tab):
    """The second token has 0.25 nats; that of the first is not known."""
    assert tab.count(".segment.thinking .token.unknown") == 1
    assert tab.count(".segment.answer .token") > 0
    tab.point_at("[data-token='1']")
    assert "entropy 0.25 nats" in tab.text("#tooltip")
    assert tab.text("#tooltip").startswith("token 2 of ")
    tab.point_at("[data-token='0']")
    assert "entropy unknown" in tab.text("#tooltip")
    low, high = (
        tab.evaluate(f"getComputedStyle(document.querySelector('[data-token=\"{token}\"]')).backgroundColor")
        for token in (1, 6)
    )
    assert low != high
    assert tab.text(".scale").startswith("entropy 0")


def test_hostile_text_is_shown_and_does_nothing(tab):
    for number, text in enumerate(HOSTILE, 1):
        tab.click(f"#response-{number}")
        shown = tab.evaluate("[...document.querySelectorAll('.reader .token')].map((e) => e.textContent).join('')")
        replaced = {"\u2028": "⟨2028⟩", "\u2029": "⟨2029⟩", "\u202e": "⟨202e⟩"}
        assert shown == "".join(replaced.get(letter, letter) for letter in text)
    assert tab.evaluate("window.pwned") is None
    assert tab.count("main script, main img, main b b") == 0
    assert tab.count(".prompt") == 2
    assert "onerror" in tab.text("#health")
    assert "<b>bold" in tab.text("h1")


def test_even_markup_that_got_in_could_not_run(browser, page):
    with browser.opened(page) as tab:
        tab.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.pwned = 1\">');"
            "const s = document.createElement('script'); s.textContent = 'window.pwned = 2'; document.body.append(s);"
            "new Promise((done) => setTimeout(done, 50))"
        )
        assert tab.evaluate("window.pwned") is None
        assert any("Content Security Policy" in complaint for complaint in tab.complaints())


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 390, 768, 1400])
def test_it_fits_any_width_in_both_colours(browser, page, tmp_path, width, dark):
    """With one problem side by side, a zoomed chart and an open tooltip, too. The screenshot has all of the page."""
    with browser.opened(page, width=width, dark=dark) as tab:
        tab.evaluate("document.querySelector('#charts .plot').focus()")
        tab.press("+")
        tab.click(".reader .controls button")
        tab.evaluate("document.querySelector('.reader .response').focus()")
        tab.press("ArrowDown")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.screenshot(tmp_path / "page.png")
        size = struct.unpack(">II", (tmp_path / "page.png").read_bytes()[16:24])
        assert size == (width, tab.evaluate("document.documentElement.scrollHeight"))
        red = tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
        assert (int(red) < 60) == dark
        assert tab.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_curves_stand_out_from_what_is_behind_them(browser, page, dark):
    """WCAG: 4.5 to 1 for text, 3 to 1 for what is drawn."""
    names = ["ink", "soft", "accent", "right", "wrong", "failed", "danger", "warning", *(f"run-{i}" for i in range(6))]
    with browser.opened(page, dark=dark) as tab:
        style = "getComputedStyle(document.documentElement)"
        colours = {
            name: tab.evaluate(f"{style}.getPropertyValue('--{name}').trim()") for name in [*names, "page", "panel"]
        }
    for name in names:
        for behind in ("page", "panel"):
            least = 3 if name.startswith("run") else 4.5
            assert contrast(colours[name], colours[behind]) >= least, (name, behind)


def contrast(one, other):
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_on_paper_there_are_curves_and_one_response_and_no_controls(browser, page):
    with browser.opened(page, dark=True) as tab:
        tab.call("Emulation.setEmulatedMedia", media="print")
        shown = {
            selector: tab.evaluate(f"document.querySelector('{selector}').getClientRects().length > 0")
            for selector in ("nav", "#smoothing", ".response-list", ".plot", "#legend", ".reader")
        }
        assert [selector for selector, is_shown in shown.items() if is_shown] == [".plot", "#legend", ".reader"]
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_a_run_that_has_only_begun(browser, tmp_path):
    run = write_run(tmp_path / "new", steps=0, dumps=())
    (run / "metrics.jsonl").unlink()
    (run / "timings.jsonl").unlink()
    with browser.opened(write_report([run])) as tab:
        assert "No steps recorded yet" in tab.text("#curves")
        assert "No rollouts saved yet" in tab.text("#responses")
        assert tab.complaints() == []


def test_a_run_of_one_step(browser, tmp_path):
    with browser.opened(write_report([write_run(tmp_path / "one", steps=1, dumps=(1,))])) as tab:
        assert tab.count("#charts .curve circle") >= 10
        assert tab.complaints() == []
