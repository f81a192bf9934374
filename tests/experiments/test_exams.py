"""A setting that a server cannot be given is refused, not dropped silently."""

import pytest

from egpo.config import load_config
from egpo.errors import InputError
from egpo.experiments.exams import require_servable

WORDS = ["model.path=egpo-tiny", "task.name=countdown", "eval.serve=true"]


def test_thinking_can_be_set():
    require_servable(load_config(None, WORDS))
    require_servable(load_config(None, [*WORDS, "model.template.enable_thinking=false"]))


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("model.template.tone=dry", "model.template.tone"),
        ("rollout.stop=[END]", "rollout.stop"),
        ("rollout.stop_tokens=[7]", "rollout.stop"),
    ],
)
def test_what_cannot_be_passed_is_refused(override, name):
    with pytest.raises(InputError, match=rf"eval.serve: `{name}` cannot be passed to a server"):
        require_servable(load_config(None, [*WORDS, override]))
