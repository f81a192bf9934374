"""Prompts of a task from outside that no model can read."""

import pytest

from egpo.errors import InputError
from egpo.local.models.policy import prompt_tokens
from egpo.tasks import Problem

PROBLEM = Problem("one", (), "1")


class Prompting:
    def __init__(self, messages):
        self.messages = messages

    def prompt(self, problem):
        return self.messages


@pytest.mark.parametrize("messages", ["just text", "", [], None])
def test_what_is_no_list_of_messages_is_refused(load, messages):
    """A string would pass through most chat templates, letter by letter, and leave an empty prompt."""
    with pytest.raises(InputError, match="problem one: the task's `prompt` returned"):
        prompt_tokens(load("qwen3"), Prompting(messages), [PROBLEM])


def test_half_a_surrogate_pair_is_named(load):
    with pytest.raises(InputError, match=r"problem 'one': .* half of a surrogate pair"):
        prompt_tokens(load("qwen3"), Prompting([{"role": "user", "content": "a\ud800b"}]), [PROBLEM])


def test_control_characters_are_text(load):
    assert prompt_tokens(load("qwen3"), Prompting([{"role": "user", "content": "\x00\x1b[31m"}]), [PROBLEM])[0]
