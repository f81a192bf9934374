import pytest

from tests.local.conftest import CONFIGS


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_every_shape_loads_and_agrees_with_itself(load, shape):
    policy = load(shape)
    assert policy.stop_ids == {2}
