"""verl's name for the backends of a CPU, "cpu:gloo,cpu:gloo", opens a process group."""

import pytest
import torch
from torch import distributed

from egpo.verl.cpu.patches import distinct, drop_repeated_backends


def test_a_group_that_torch_refuses_opens(tmp_path, monkeypatch):
    where = {"init_method": f"file://{tmp_path}/store", "rank": 0, "world_size": 1}
    monkeypatch.setattr(distributed, "init_process_group", distributed.init_process_group)
    with pytest.raises(ValueError, match="cpu:gloo"):
        distributed.init_process_group("cpu:gloo,cpu:gloo", **where)
    drop_repeated_backends(distributed)
    distributed.init_process_group("cpu:gloo,cpu:gloo", **where)
    try:
        total = torch.ones(2)
        distributed.all_reduce(total)
        assert total.tolist() == [1.0, 1.0]
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo", "cpu:gloo,cuda:nccl"])
def test_other_backends_stay(backend):
    assert distinct(backend) == backend
