"""Time saving a training state, compared with torch.save and with safetensors plus digest.

    python benchmarks/checkpoints.py [--gib 2 --rounds 5 --device cuda --folder /scratch]

The tensors are float32, shaped like the optimizer state of a model. `torch.save` is what transformers' Trainer and TRL
do: there is no digest, and the bytes may not be on the disk when it returns. `one after another` has both, as ours:
safetensors, then the digest, then fsync. The limit is a write of as many bytes from memory, with fsync.

    python benchmarks/checkpoints.py --delay [--weights 0.6e9 --device cuda --rounds 1 --seconds 50 --json FILE]

How long a checkpoint delays training: whole checkpoints of a model with that number of weights (bfloat16 with float32
masters on a GPU, float32 on a CPU, and two moments), waited for and in the background, in turn. Steps are products of
matrices on all threads, or on the GPU, for about half a second. The delay is the time until the checkpoint is written,
or the copy is made, plus what the steps meanwhile take longer than steps without a checkpoint. No contender begins
after `--seconds`.
"""

import argparse
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

from egpo.files import fsync_path
from egpo.local.checkpoints.background import BackgroundWriter, HostMemory
from egpo.local.checkpoints.checkpoint import Checkpoints, Snapshot
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


@dataclass(frozen=True)
class Delay:
    """Seconds for which training stands still, by which it is delayed in all, and until the checkpoint is complete."""

    way: str
    stall_s: float
    delay_s: float
    written_s: float
    num_steps: int


class Steps:
    """Products of matrices that last about half a second, and the seconds that they take undisturbed."""

    def __init__(self, device):
        size = 8192 if device == "cuda" else 1024
        self._a, self._b = (torch.randn(size, size, device=device) for _ in range(2))
        self._is_on_gpu, self._count = device == "cuda", 1
        self.take()
        start = time.perf_counter()
        self.take()
        self._count = max(1, round(0.5 / (time.perf_counter() - start)))

    def take(self):
        for _ in range(self._count):
            torch.mm(self._a, self._b)
        if self._is_on_gpu:
            torch.cuda.synchronize()

    def usual_s(self, num=4):
        start = time.perf_counter()
        for _ in range(num):
            self.take()
        return (time.perf_counter() - start) / num


class State:
    """Weights and optimizer state of a model, and the folder that its checkpoints are written to."""

    def __init__(self, num_weights, device, root):
        count = 300
        shape = (int(num_weights / count / 1024), 1024)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.weights = {f"w{i}": torch.randn(shape, device=device).to(dtype) for i in range(count)}
        kinds = ("exp_avg", "exp_avg_sq", *(("master",) if device == "cuda" else ()))
        self.tensors = {f"{kind}/w{i}": torch.rand(shape, device=device) for kind in kinds for i in range(count)}
        self.num_bytes = sum(tensor.nbytes for tensor in [*self.weights.values(), *self.tensors.values()])
        self.checkpoints = Checkpoints(root, identity="", command="", keep_last=1, keep_best=0)
        self.writer, self._step = BackgroundWriter(self.checkpoints), 0

    def snapshot(self):
        self._step += 1
        return Snapshot(self._step, self.tensors, {})

    def export(self, weights, folder):
        save_file(weights, folder / "model.safetensors")

    def waited(self, steps):
        start = time.perf_counter()
        self.checkpoints.save(self.snapshot(), lambda folder: self.export(self.weights, folder))
        seconds = time.perf_counter() - start
        return Delay("waited for", seconds, seconds, seconds, 0)

    def in_background(self, steps):
        before, start, num_steps = steps.usual_s(), time.perf_counter(), 0
        assert self.writer.start(self.snapshot(), self.weights, self.export)
        stall, write = time.perf_counter() - start, None
        while write is None:
            steps.take()
            num_steps += 1
            write = self.writer.finished(wait=False)
        assert write.error is None, write.error
        whole = time.perf_counter() - start
        usual = (before + steps.usual_s()) / 2
        return Delay("in the background", stall, whole - num_steps * usual, whole, num_steps)


def copy_rates(state):
    """Print the seconds of a copy into new page-locked memory, and of copies into memory that is allocated already."""
    if not next(iter(state.weights.values())).is_cuda:
        return
    memory, seconds = HostMemory(), []
    for _ in range(3):
        start = time.perf_counter()
        memory.copied(state.tensors, state.weights)
        seconds.append(round(time.perf_counter() - start, 3))
    print(f"copies (the first one allocates the memory): {seconds} s; page-locked: {memory._is_locked}", flush=True)


def measure_delays(arguments, folder):
    begin = time.perf_counter()
    state, steps = State(arguments.weights, arguments.device, folder), Steps(arguments.device)
    print(f"{state.num_bytes / 2**30:.2f} GiB on {arguments.device}, a step {steps.usual_s():.2f} s", flush=True)
    why_not = state.writer.why_not(Snapshot(0, state.tensors, {}), state.weights)
    print(f"a copy is not possible: {why_not}" if why_not else "a copy is possible", flush=True)
    delays = []
    for _ in range(arguments.rounds):
        for contender in (state.in_background, state.waited):
            if time.perf_counter() - begin < arguments.seconds:
                os.sync()
                delays.append(contender(steps))
                print(delays[-1], flush=True)
    copy_rates(state)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(delay) for delay in delays]) + "\n")
    table = Table(
        "", "stands still, s", "delayed in all, s", "complete after, s", title=f"{arguments.weights:g} weights"
    )
    for way in dict.fromkeys(delay.way for delay in delays):
        those = [delay for delay in delays if delay.way == way]
        figures = [[getattr(delay, name) for delay in those] for name in ("stall_s", "delay_s", "written_s")]
        table.add_row(
            way, *(f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" for values in figures)
        )
    Console(width=120).print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", help="folder on the disk to measure; default: the folder for temporary files")
    parser.add_argument("--delay", action="store_true", help="measure how long a checkpoint delays training")
    parser.add_argument("--weights", type=float, default=1e8, help="number of weights, with --delay")
    parser.add_argument("--seconds", type=float, default=120.0, help="with --delay, begin nothing after this time")
    parser.add_argument("--json", help="file for the figures of --delay")
    arguments = parser.parse_args()
    if arguments.delay:
        folder = Path(tempfile.mkdtemp(dir=arguments.folder))
        try:
            measure_delays(arguments, folder)
        finally:
            shutil.rmtree(folder)
        return
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
