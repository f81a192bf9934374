"""A recorded step comes back as it was."""

from dataclasses import replace

import numpy as np
import torch

from egpo.verl.dumps import UpdateInputs, read_record, settings_of_update, write_record
from tests.verl.batches import LENGTH, feed_for, keys_of


def used_of(count, **others):
    given = {"reference_BT": None, "settings": {}, **others}
    return UpdateInputs(torch.rand(count), torch.rand(count, LENGTH), **given)


def test_what_was_written_is_read(tmp_path):
    feed, used = feed_for(keys_of(2, 3), failed={1}, lam=0.25), used_of(6, settings={"data.train_batch_size": 2})
    recorded = read_record(write_record(tmp_path / "new", 7, feed, used))
    assert (tmp_path / "new" / "step_7.npz").exists()
    assert recorded.groups.tolist() == list(feed.rows.groups)
    assert recorded.about["arguments"]["lam"] == 0.25
    assert (recorded.about["estimator"], recorded.about["segment"]) == ("egpo", "thinking")
    assert recorded.about["update"] == {"data.train_batch_size": 2}
    assert recorded.failed_B.tolist() == [False, True, False, False, False, False]
    np.testing.assert_array_equal(recorded.entropy_BT, feed.rows.entropy_BT.numpy())
    np.testing.assert_array_equal(recorded.advantage_BT, used.advantage_BT.numpy())
    assert (recorded.sampled_logp_BT, recorded.reference_BT) == (None, None)


def test_the_place_of_each_response_in_verl_s_batch_is_recorded(tmp_path):
    """Padding and earlier outputs of a session are rows, too."""
    keys = ["pad_0_0", "a-uid_0_0", "a-uid_0_1", "a-uid_1_0"]
    feed = feed_for(keys, [{"is_padding": True}, {}, {}, {}])
    feed = replace(feed, rows=replace(feed.rows, sampled_logp_BT=torch.rand(2, LENGTH)))
    used = used_of(2, reference_BT=torch.rand(2, LENGTH))
    recorded = read_record(write_record(tmp_path, 1, feed, used))
    assert (recorded.row_B.tolist(), recorded.about["num_rows"]) == ([2, 3], 4)
    np.testing.assert_array_equal(recorded.sampled_logp_BT, feed.rows.sampled_logp_BT.numpy())
    np.testing.assert_array_equal(recorded.reference_BT, used.reference_BT.numpy())


def test_the_settings_of_the_update_are_those_that_decide_it():
    actor = {"optim": {"lr": 1e-6}, "profiler": {"save_path": "outputs"}, "checkpoint": {}}
    config = {"actor_rollout_ref": {"actor": actor, "rollout": {"n": 4}}, "trainer": {"nnodes": 1, "logger": "file"}}
    found = settings_of_update(config)
    assert found["actor_rollout_ref.actor"] == {"optim": {"lr": 1e-6}}
    assert (found["actor_rollout_ref.rollout.n"], found["trainer.nnodes"]) == (4, 1)
    assert "trainer.logger" not in found
    assert found["data.train_batch_size"] is None
