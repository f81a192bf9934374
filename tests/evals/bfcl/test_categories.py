import pytest

from egpo.errors import InputError
from egpo.evals.bfcl.categories import CATEGORIES, ELSEWHERE, MULTI_TURN, parse_categories


def test_names_and_collections_in_bfcls_order():
    assert parse_categories("multi_turn_base, simple_python") == ("simple_python", "multi_turn_base")
    assert parse_categories("multi_turn,multi_turn_base") == MULTI_TURN
    assert parse_categories("all") == CATEGORIES


@pytest.mark.parametrize("word", ["multi_turn_bas", "simple", "nothing", ""])
def test_what_does_not_exist_is_told_with_the_list(word):
    with pytest.raises(InputError, match=r"categories simple_python, .*multi_turn_long_context"):
        parse_categories(word)


@pytest.mark.parametrize("word", ["memory_kv", "web_search_base", "format_sensitivity"])
def test_what_is_not_offered_says_why(word):
    family = next(name for name in ELSEWHERE if word.startswith(name))
    with pytest.raises(InputError, match=ELSEWHERE[family][:30]):
        parse_categories(word)


def test_the_list_is_shown_once():
    with pytest.raises(InputError) as told:
        parse_categories("nope")
    assert str(told.value).count("live_parallel_multiple") == 1
