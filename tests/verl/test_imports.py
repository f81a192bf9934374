"""Patches wait for their module, and come once."""

import importlib
import sys

import pytest

from egpo.verl.imports import when_imported


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that nobody has imported yet."""
    (tmp_path / "a_module_to_patch.py").write_text("import os\nvalue = 1\nassert 'BROKEN' not in os.environ\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "a_module_to_patch"
    sys.modules.pop("a_module_to_patch", None)


def double(module):
    module.value *= 2


def test_a_module_is_patched_as_the_last_act_of_its_import(module):
    when_imported(module, double)
    assert module not in sys.modules
    assert importlib.import_module(module).value == 2


def test_a_module_that_is_loaded_is_patched_at_once(module):
    loaded = importlib.import_module(module)
    when_imported(module, double)
    assert loaded.value == 2


def test_waiting_twice_patches_once(module):
    when_imported(module, double)
    when_imported(module, double)
    assert importlib.import_module(module).value == 2


def test_two_patches_of_one_module_both_come_in_their_order(module):
    def add_ten(module):
        module.value += 10

    when_imported(module, double)
    when_imported(module, add_ten)
    assert importlib.import_module(module).value == 12


def test_an_import_that_failed_is_patched_when_it_succeeds(module, monkeypatch):
    when_imported(module, double)
    monkeypatch.setenv("BROKEN", "1")
    with pytest.raises(AssertionError):
        importlib.import_module(module)
    monkeypatch.delenv("BROKEN")
    assert importlib.import_module(module).value == 2


def test_a_module_that_does_not_exist_is_still_missing(module):
    when_imported("no_such_module_of_verl", double)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_of_verl")
