"""What is written piece by piece is a safetensors file like any other, and its digest is the file's."""

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from egpo.local.checkpoints import tensor_files
from egpo.local.checkpoints.tensor_files import write_tensors

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@given(st.dictionaries(st.text(max_size=8), st.tuples(shapes, st.sampled_from(DTYPES)), max_size=6), st.integers(1, 40))
def test_every_tensor_is_read_back(tmp_path_factory, described, piece):
    tensors = {
        name: (torch.randn(shape, generator=torch.Generator().manual_seed(i)) * 9).to(dtype)
        for i, (name, (shape, dtype)) in enumerate(described.items())
    }
    path = tmp_path_factory.mktemp("file") / "x.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_files, "_PIECE", piece)
        entry = write_tensors(path, tensors)
    assert (entry.size, entry.sha256) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    again = load_file(path)
    assert set(again) == set(tensors)
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert torch.equal(again[name], tensor)


def test_a_view_is_written_as_what_it_shows(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    write_tensors(tmp_path / "x", {"columns": whole[:, 1:3], "turned": whole.T})
    again = load_file(tmp_path / "x")
    assert torch.equal(again["columns"], whole[:, 1:3])
    assert torch.equal(again["turned"], whole.T)


def test_a_full_disk_is_an_error_of_the_system(monkeypatch):
    monkeypatch.setattr(tensor_files.os, "fdatasync", lambda handle: None)  # this device is no disk
    with pytest.raises(OSError, match="No space left"):
        write_tensors(Path("/dev/full"), {"x": torch.zeros(10_000)})
