import itertools

from hypothesis import given
from hypothesis import strategies as st

from egpo.local.updates.micro_batches import RowTokens, first_fit, micro_batches


@st.composite
def batches(draw):
    """Prompts of any length, and rows that answer them in any order; some rows are empty."""
    prompts = draw(st.lists(st.integers(1, 30).map(lambda n: [1] * n), min_size=1, max_size=5))
    rows = draw(st.lists(st.tuples(st.integers(0, len(prompts) - 1), st.integers(0, 40)), max_size=25))
    return RowTokens(prompts, [p for p, _ in rows], [[100 + i] * length for i, (_, length) in enumerate(rows)])


@given(batches(), st.integers(1, 120))
def test_every_row_with_tokens_exactly_once_and_no_part_over_budget(tokens, budget):
    parts = micro_batches(range(len(tokens.problem)), tokens, budget)
    rows = [row for part in parts for row in part.rows]
    assert sorted(rows) == [row for row, response in enumerate(tokens.responses) if response]
    assert all(part.num_tokens <= budget or part.num_rows == 1 for part in parts)


@given(batches(), st.integers(1, 120))
def test_rows_stand_in_the_order_of_their_responses_beside_their_own_prompt(tokens, budget):
    for part in micro_batches(range(len(tokens.problem)), tokens, budget):
        pairs = [(group.prompt, response) for group in part.groups for response in group.responses]
        assert pairs == [(tokens.prompts[tokens.problem[row]], tokens.responses[row]) for row in part.rows]


@given(batches())
def test_a_prompt_is_computed_once_where_the_budget_allows(tokens):
    parts = micro_batches(range(len(tokens.problem)), tokens, budget=10_000)
    asked = {problem for problem, response in zip(tokens.problem, tokens.responses, strict=True) if response}
    assert len(parts) == (1 if asked else 0)
    assert sum(len(part.groups) for part in parts) == len(asked)


@given(batches(), st.integers(1, 120))
def test_the_same_rows_give_the_same_parts(tokens, budget):
    rows = range(len(tokens.problem))
    assert micro_batches(rows, tokens, budget) == micro_batches(rows, tokens, budget)


def test_a_group_too_large_is_cut_with_its_prompt_repeated():
    tokens = RowTokens([[1] * 10], [0] * 4, [[5] * 11] * 4)  # 10 tokens each besides the prompt
    parts = micro_batches(range(4), tokens, budget=35)
    assert [part.num_tokens for part in parts] == [30, 30]
    assert [part.num_rows for part in parts] == [2, 2]


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(0, 25))
def test_first_fit_wastes_less_than_half(sizes, room):
    bins = first_fit(sizes, room)
    assert sorted(index for bin in bins for index in bin) == list(range(len(sizes)))
    loads = sorted(sum(sizes[index] for index in bin) for bin in bins)
    assert all(low + high > room for low, high in itertools.pairwise(loads))  # no two would fit in one
