"""A patch wraps once, and complains when what it wraps has changed."""

from types import SimpleNamespace

import pytest

from egpo.errors import EgpoError
from egpo.verl.cpu.patches import replace


def test_replacing_twice_wraps_once():
    owner = SimpleNamespace(f=lambda: 1)

    def add_one(f):
        return lambda: f() + 1

    replace(owner, "f", add_one)
    replace(owner, "f", add_one)
    assert owner.f() == 2


def test_a_verl_that_has_changed_is_named_with_the_command_that_installs_the_right_one():
    with pytest.raises(EgpoError, match=r"`verl.some_module` has no `f`.*verl 0\.9\.1.*make verl"):
        replace(SimpleNamespace(__name__="verl.some_module"), "f", lambda f: f)
