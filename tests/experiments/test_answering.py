"""What a server cannot be told is not forgotten silently."""

import pytest

from egpo.config import load_config
from egpo.errors import InputError
from egpo.experiments.answering import require_servable

WORDS = ["model.path=egpo-tiny", "task.name=countdown", "eval.serve=true"]


def test_thinking_can_be_told():
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
def test_what_cannot_be_told_is_refused(override, name):
    with pytest.raises(InputError, match=rf"eval.serve: a server cannot be told `{name}`"):
        require_servable(load_config(None, [*WORDS, override]))
