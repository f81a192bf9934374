"""A recorded step comes back as it was."""

import numpy as np
import torch

from egpo.verl.dumps import read_record, write_record
from tests.verl.batches import LENGTH, feed_for, keys_of


def test_what_was_written_is_read(tmp_path):
    feed = feed_for(keys_of(2, 3), failed={1}, lam=0.25)
    reward_B, advantage_BT = torch.rand(6), torch.rand(6, LENGTH)
    recorded = read_record(write_record(tmp_path / "new", 7, feed, reward_B, advantage_BT))
    assert (tmp_path / "new" / "step_7.npz").exists()
    assert recorded.groups.tolist() == list(feed.rows.groups)
    assert recorded.about["arguments"]["lam"] == 0.25
    assert (recorded.about["estimator"], recorded.about["segment"]) == ("egpo", "thinking")
    assert recorded.failed_B.tolist() == [False, True, False, False, False, False]
    np.testing.assert_array_equal(recorded.entropy_BT, feed.rows.entropy_BT.numpy())
    np.testing.assert_array_equal(recorded.advantage_BT, advantage_BT.numpy())
