"""What is written down of verl, against the verl that is installed."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egpo.support import VERL_VERSION
from egpo.verl.launch.hydra_overrides import format_value
from egpo.verl.launch.schema.known import PATH

pytestmark = pytest.mark.verl
pytest.importorskip("verl")


def test_the_snapshot_is_that_of_the_installed_verl():
    from egpo.verl.launch.schema.snapshot import snapshot

    held = json.loads(PATH.read_text(encoding="utf-8"))
    assert held["version"] == VERL_VERSION
    assert json.loads(json.dumps(snapshot())) == held


text = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@example("A¹")  # a letter and a digit to Python, neither to Hydra
@given(values)
def test_hydra_reads_back_what_is_spelt(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (read,) = OverridesParser.create().parse_overrides([f"key={format_value(value)}"])
    assert read.value() == value
    assert type(read.value()) is type(value)
