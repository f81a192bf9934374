"""Finding responses in a real browser: search, sorting, links, one problem side by side, tokens by key."""

import pytest

from egpo.reports import write_report
from tests.reports.folders import HOSTILE, group_records, write_run
from tests.reports.test_evaluations import write_evaluation

ACTIVE = ".option[aria-selected=true]"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two runs that saw the same two problems, and an evaluation of the first run and of its base."""
    place = tmp_path_factory.mktemp("runs")
    records = [*group_records(1), *group_records(1, ("short", "a longer response", "x"), problem="problem 2")]
    runs = [write_run(place / name, dumps=(1, 12), records=records) for name in ("first", "second")]
    write_evaluation(runs[0], "base", "the base", None, 0.25, n=1, temperature=0.0)
    write_evaluation(runs[0], "final", "first step 12", 12, 0.75, n=1, temperature=0.0)
    return write_report(runs)


@pytest.fixture
def tab(browser, page):
    with browser.opened(page) as tab:
        yield tab
        assert tab.complaints() == []


def type_into(tab, selector, text):
    tab.evaluate(
        f"(() => {{ const e = document.querySelector({selector!r}); e.value = {text!r};"
        " e.dispatchEvent(new Event('input')); })()"
    )


def written(tab, place=".reader"):
    """The response as the model wrote it, without the names of its segments."""
    return "".join(listed(tab, f"{place} .token"))


def listed(tab, selector):
    return tab.evaluate(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")


def test_evaluation_responses_stand_beside_the_rollouts(tab):
    groups = tab.evaluate("[...document.querySelectorAll('[aria-label=Source] optgroup')].map((e) => e.label)")
    assert groups == ["Training rollouts", "Evaluations"]
    names = listed(tab, "[aria-label=Source] option")
    assert names[:2] == ["first", "second"]
    assert names[2].startswith("the base · countdown (test), 20 problems, greedy")
    tab.choose("[aria-label=Source]", "3")
    assert tab.count(".option") == 20
    assert "first step 12 · countdown" in tab.text(".reader")
    assert tab.evaluate("document.querySelector('.stepper').hidden")
    assert tab.count(".reader .token") == 0


def test_search_in_one_step(tab):
    type_into(tab, "input[type=search]", "LONGER")
    assert tab.count(".option") == 1
    assert written(tab) == "a longer response"
    type_into(tab, "input[type=search]", "problem 2")
    assert tab.count(".option") == 3
    type_into(tab, "input[type=search]", "<img src=x onerror")
    assert tab.count(".option") == len(HOSTILE) + 4  # the ground truth of every response has it
    type_into(tab, "input[type=search]", "no such text")
    assert tab.text(".reader") == "No responses match the filters."


def test_search_in_all_steps_and_runs(tab):
    type_into(tab, "input[type=search]", "longer")
    tab.click("input[type=checkbox]")
    assert tab.count(".option") == 4
    heads = listed(tab, ".group-head b")
    assert heads == [f"{run} · step {step} · problem 2" for run in ("first", "second") for step in (1, 12)]


@pytest.mark.parametrize("key", ["entropy", "advantage", "length", "reward"])
def test_responses_are_sorted_by_any_figure(tab, key):
    tab.choose("[aria-label='Sort by']", key)
    down = [float(text.split()[0].replace(",", "")) for text in listed(tab, ".option > :last-child")]
    assert down == sorted(down, reverse=True)
    assert len(set(down)) > 1
    tab.click("#sort-direction")
    up = [float(text.split()[0].replace(",", "")) for text in listed(tab, ".option > :last-child")]
    assert up == sorted(down)
    assert tab.count(".group-head") == 0


def test_a_link_leads_to_its_response(browser, tab, page):
    tab.choose("[aria-label=Source]", "1")
    tab.choose("[aria-label=Step]", "1")
    tab.click("#response-10")
    link = tab.evaluate("document.querySelector('.permalink').href")
    assert tab.evaluate("location.href") == link
    shown = tab.text(".reader h3")
    assert shown == "problem 2 · sample 2"
    with browser.opened(link) as other:
        assert other.text(".reader h3") == shown
        assert "second · step 1" in other.text(".reader")
        assert written(other) == "a longer response"
        assert other.complaints() == []


@pytest.mark.parametrize("fragment", ["response=rollouts&of=gone&at=1&problem=x&sample=0", "response", "%", "curves"])
def test_a_link_to_nothing_is_passed_over(browser, page, fragment):
    with browser.opened(f"{page.resolve().as_uri()}#{fragment}") as tab:
        assert tab.text(".reader h3") == "problem 1 · sample 1"
        assert tab.complaints() == []


def test_one_problem_across_steps_and_runs_side_by_side(tab):
    tab.click("#response-9")
    tab.click(".reader .controls button")
    assert listed(tab, ".beside h4") == [f"{run} · step {step}" for run in ("first", "second") for step in (1, 12)]
    assert listed(tab, ".beside-column > p")[0] == "1 of 3 right, mean reward 0.3333"
    assert written(tab, ".beside-column:first-child") == "short"
    tab.click(".beside-column [aria-label='Next sample']")
    assert written(tab, ".beside-column:first-child") == "a longer response"
    tab.evaluate("[...document.querySelectorAll('.beside-column')][2].querySelector(':scope > div > button').click()")
    assert "second · step 1" in tab.text(".reader")
    tab.evaluate("document.querySelector('.beside .reader-head button').click()")
    assert tab.count(".beside") == 0


def test_one_problem_across_evaluated_models(tab):
    tab.choose("[aria-label=Source]", "2")
    tab.click(".reader .controls button")
    assert [text.split(" · ")[0] for text in listed(tab, ".beside h4")] == ["the base", "first step 12"]


def test_tokens_are_read_by_key(tab):
    tab.point_at("h1")  # a mouse that rests on a token would show it again after Escape
    tab.evaluate("document.querySelector('.reader .response').focus()")
    tab.press("ArrowRight")
    assert "token 1 of" in tab.text("#tooltip")
    tab.press("End")
    assert tab.count(".token.active") == 1
    number, of = tab.text("#tooltip").splitlines()[0].removeprefix("token ").split(" of ")
    assert number == of
    tab.press("Home")
    tab.press("ArrowDown")  # the next token of high entropy, here one with alternatives
    assert "token 2 of" in tab.text("#tooltip")
    tab.press("ArrowUp")
    assert "token 2 of" in tab.text("#tooltip")
    tab.press("Escape")
    assert tab.evaluate("document.querySelector('#tooltip').hidden")


def test_tab_reaches_the_tokens(tab):
    tab.evaluate("document.querySelector('.permalink').focus()")
    for _ in range(4):
        tab.press("Tab")
        if tab.evaluate("document.activeElement.className") == "response":
            break
    assert tab.evaluate("document.activeElement.className") == "response"


def test_alternatives_are_shown_with_their_probabilities_and_stay_text(tab):
    tab.point_at(".has-alternatives")
    assert listed(tab, "#tooltip td.number") == ["75.0 %", "12.5 %"]
    assert tab.evaluate("document.querySelector('#tooltip tr code').textContent") == f'"{HOSTILE[2]}"'
    assert tab.count("#tooltip tr.sampled") == 1
    assert tab.count("#tooltip img") == 0
    assert tab.evaluate("window.pwned") is None


def test_slash_goes_to_the_search_and_letters_typed_there_move_nothing(tab):
    tab.press("/")
    assert tab.evaluate("document.activeElement.type") == "search"
    tab.press("j")
    assert tab.evaluate("document.activeElement.value") == "j"
