"""Time saving a training state, compared with torch.save and with safetensors plus digest.

    python benchmarks/checkpoints.py [--gib 2 --rounds 5 --device cuda --folder /scratch]

The tensors are float32, shaped like the optimizer state of a model. `torch.save` is what transformers' Trainer and TRL
do: there is no digest, and the bytes may not be on the disk when it returns. `one after another` has both, as ours:
safetensors, then the digest, then fsync. The limit is a write of as many bytes from memory, with fsync.
"""

import argparse
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

from egpo.files import fsync_path
from egpo.local.checkpoints.tensor_files import write_tensors
from interleaved import time_interleaved


def make_tensors(gib, device):
    generator = torch.Generator(device).manual_seed(0)
    rows = int(gib * 2**30 / 4 / 16 / 1024)
    return {f"exp_avg/{i}": torch.randn(rows, 1024, generator=generator, device=device) for i in range(16)}


def one_after_another(path, tensors):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")
    fsync_path(path)


def bytes_alone(path, content):
    with path.open("wb") as file:
        file.write(content)
        os.fsync(file.fileno())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", help="folder on the disk to measure; default: the folder for temporary files")
    arguments = parser.parse_args()
    tensors = make_tensors(arguments.gib, arguments.device)
    content = os.urandom(2**20) * int(arguments.gib * 1024)
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        timings = time_interleaved(
            {
                "limit": lambda: bytes_alone(folder / "limit", content),
                "ours": lambda: write_tensors(folder / "ours", tensors),
                "one after another": lambda: one_after_another(folder / "plain", tensors),
                "torch.save": lambda: torch.save(tensors, folder / "torch"),
            },
            arguments.rounds,
            before=os.sync,  # the unwritten bytes of one contender must not cost time of the next
        )
        again = load_file(folder / "ours")
        assert all(torch.equal(again[name], tensor.cpu()) for name, tensor in tensors.items())
    finally:
        shutil.rmtree(folder)
    table = Table("", "s", "GB/s", "times the limit", title=f"{arguments.gib:g} GiB from {arguments.device}")
    for name, timing in timings.items():
        rate = f"{arguments.gib * 2**30 / 1e9 / timing.median_s:.2f}"
        table.add_row(name, f"{timing.median_s:.2f}", rate, str(timing.over(timings["limit"])))
    Console().print(table)


if __name__ == "__main__":
    main()
