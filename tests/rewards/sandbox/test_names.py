"""Which names test code takes from the program."""

import pytest

from egpo.rewards.sandbox.ground_truth import names_in


@pytest.mark.parametrize(
    ("snippets", "program", "modules"),
    [
        (["assert f(2) == 4"], ["f"], []),
        (["assert abs(f(1.0) - 2) < 1e-6"], ["f"], []),
        (["assert math.isclose(f(1), 2)"], ["f"], ["math"]),
        (["import math", "assert math.isclose(f(1), 2)"], ["f"], []),
        (["assert copy([1]) == [1]"], ["copy"], []),
        (["assert sum(3, 4) == 12"], ["sum"], []),
        (["assert sorted(f(1)) == [1]"], ["f"], []),
        (["def check(candidate):\n    assert candidate(1) == helper(2)", "check(f)"], ["f", "helper"], []),
        (["x = f(1)", "assert x == 2 and [y for y in x]"], ["f"], []),
        (["for i in range(3): assert f(i) == g.h(i)"], ["f", "g"], []),
        (["assert (lambda z: f(z))(1) == 2"], ["f"], []),
        (["class T:\n    def m(self): return f(self)", "assert T().m() == 1"], ["f"], []),
        (["with open('x') as h: assert f(h.read())"], ["f"], []),
        (["try:\n    f()\nexcept ValueError as e:\n    assert str(e)"], ["f"], []),
        (["assert True"], [], []),
    ],
)
def test_free_names(snippets: list[str], program: list[str], modules: list[str]) -> None:
    names = names_in(snippets)
    assert (list(names.program), list(names.modules)) == (program, modules)


def test_an_entry_point_comes_from_the_program_even_if_it_is_a_builtin() -> None:
    assert names_in(["assert max(1) == f(2)"], ["max"]).program == ("f", "max")


def test_a_program_cannot_lend_its_builtins_to_its_judge() -> None:
    assert "abs" not in names_in(["assert abs(f(1) - 3) < 1"]).program
