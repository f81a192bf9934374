import pytest

from tests.merges.sharded import Sharding, save_sharded


@pytest.fixture(scope="session")
def two_shards(tmp_path_factory):
    """The actor folder of a checkpoint of step 7, of two ranks. To be read only."""
    actor = tmp_path_factory.mktemp("two_shards") / "checkpoints" / "global_step_7" / "actor"
    save_sharded(actor, Sharding(2))
    return actor
