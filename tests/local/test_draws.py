"""Draws are functions of what they are for."""

import torch

from egpo.local.draws import Draws


def test_draws_do_not_depend_on_company_or_order():
    together = Draws(3, 7).uniforms(["a", "b", "c"], 2, 5)
    assert torch.equal(Draws(3, 7).uniforms(["b"], 2, 5), together[2:4])
    assert torch.equal(Draws(3, 7).uniforms(["c", "a"], 2, 5), torch.cat([together[4:], together[:2]]))


def test_a_longer_row_begins_like_a_shorter_one():
    assert torch.equal(Draws(3).uniforms(["a"], 1, 9)[:, :5], Draws(3).uniforms(["a"], 1, 5))


def test_everything_that_must_not_be_correlated_is_not():
    draws = [Draws(0), Draws(1), Draws(0, 1), Draws(0, 0, "validation")]
    rows = [tuple(each.uniforms(["a"], 1, 4)[0].tolist()) for each in draws]
    rows += [tuple(row) for row in Draws(0).uniforms(["b", "a", "a"], 3, 4).tolist()]
    # Nine rows of the last call, of which the first draws of `a` are the very first row again.
    assert len(set(rows)) == len(draws) + 9 - 1


def test_a_hostile_key_is_only_a_key():
    assert Draws(0).uniforms(["\ud800\n0\x00", ""], 1, 1).shape == (2, 1)


def test_a_permutation_holds_every_number_once():
    assert sorted(Draws(1).permutation(100, "x")) == list(range(100))
    assert Draws(1).permutation(100, "x") != Draws(1).permutation(100, "y")
