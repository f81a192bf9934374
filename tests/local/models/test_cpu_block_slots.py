"""The kernel's cache: what it takes, and what it refuses to write."""

import resource
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config

from egpo.local.models.caches import BlockSlots
from egpo.local.models.packs import Sequences, pack_groups
from egpo.native.library import kernels, why_no_kernels
from tests.local.models.test_cpu_decoder import SHAPES, SIZES, policy_of

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_no_kernels()}")


@torch.no_grad()
def open_rows(policy, rows, max_new):
    pack, slots = pack_groups([Sequences([1, 2, 3])]), policy.open_slots()
    assert isinstance(slots, BlockSlots)
    policy.hidden(pack, slots)
    slots.spread(pack.layout, [0] * rows, max_new)
    return slots


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_room_for_long_responses_takes_memory_only_as_they_grow():
    """1 GiB of room, of which two tokens a row are written."""
    policy = policy_of(Qwen3Config(**SIZES | {"num_key_value_heads": 6}, head_dim=64))
    before = resident_bytes()
    slots = open_rows(policy, rows=32, max_new=5440)
    for _ in range(2):
        slots.next_hidden(torch.ones(32, dtype=torch.long))
    assert resident_bytes() - before < 1 << 28


@pytest.mark.parametrize(
    ("token_R", "fault"),
    [
        (torch.ones(2, dtype=torch.int32), "tokens must be int64"),
        (torch.ones(3, dtype=torch.long), "must be one token per row"),
    ],
)
def test_tokens_that_the_kernel_would_misread(token_R, fault):
    slots = open_rows(policy_of(SHAPES["blocks of keys"]), rows=2, max_new=2)
    with pytest.raises(AssertionError, match=fault):
        slots.next_hidden(token_R)


def test_tokens_with_gaps_are_those_without():
    policy = policy_of(SHAPES["blocks of keys"])
    spaced = torch.tensor([[5, 0], [7, 0], [9, 0]])[:, 0]
    found, expected = (open_rows(policy, 3, 2).next_hidden(each) for each in (spaced, spaced.contiguous()))
    assert torch.equal(found, expected)


def test_nothing_is_written_past_the_room():
    slots = open_rows(policy_of(SHAPES["blocks of keys"]), rows=2, max_new=16)
    for _ in range(16):
        slots.next_hidden(torch.ones(2, dtype=torch.long))
    with pytest.raises(AssertionError, match="all slots are full"):
        slots.next_hidden(torch.ones(2, dtype=torch.long))
