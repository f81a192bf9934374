"""What verl asks `torch.cuda`, answered for a CPU."""

import pytest
import torch

from egpo.verl.cpu import device_module


def test_memory_is_that_of_the_process_and_the_machine():
    resident = device_module.memory_allocated()
    free, total = device_module.mem_get_info()
    assert 2**20 < resident <= device_module.max_memory_allocated() * 1.01
    assert 0 < free < total
    assert resident < total


def test_the_device_is_one_that_tensors_move_to():
    assert torch.ones(1).to(device_module.current_device()).device.type == "cpu"


def test_a_random_state_comes_back():
    state = device_module.get_rng_state()
    drawn = torch.rand(3)
    device_module.set_rng_state(state)
    assert torch.equal(torch.rand(3), drawn)


def test_the_rest_is_torch_cpu_and_what_nobody_has_is_missing():
    assert device_module.current_stream is torch.cpu.current_stream
    with pytest.raises(AttributeError, match="no_such_call"):
        _ = device_module.no_such_call
