"""Measure the speed board: egpo beside vLLM, TRL, TRL with vLLM colocated, and verl, on one GPU.

    python benchmarks/speed_board.py --out board.jsonl                       the core: two cells, three rounds each
    python benchmarks/speed_board.py --out board.jsonl --cell 1.7B           one factor changed; --cell all: every cell
    python benchmarks/speed_board.py --show board.jsonl [--markdown]         the tables

The core: Qwen3's 0.6B shape with random weights in bfloat16, 16 prompts of 128 tokens, 16 responses to each: exactly
512 tokens, or 64 to 1,024 tokens with the same lengths for every contender. One optimizer step over all rows.

Each part is a process with a time limit, so that a contender that fails or hangs does not stop the others:

    vllm       egpo and vLLM (rollouts with and without log-probabilities), in turn
    trl-vllm   egpo and TRL's GRPOTrainer with vLLM colocated, in turn
    trl        egpo and TRL's GRPOTrainer with `generate`, in turn
    verl       verl by `egpo train`, as processes of its own, then egpo
    egpo       egpo alone, for cells in which two contenders do not fit into memory together

A ratio is computed within one round of one process. Every measurement is appended to the file as soon as it is made.
Needs a CUDA device; vLLM, TRL and datasets for the peers.
"""

import argparse
import contextlib
import gc
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from rich.console import Console

import _board_tables as tables

CORE = ("512", "64-1024")
LIMIT_S = {"vllm": 250, "trl-vllm": 280, "trl": 420, "verl": 380, "egpo": 240}
END_S = 40
WARM_UP_TOKENS = 64
"""Tokens of a peer's rows in the warm-up, which loads its kernels. egpo warms up with a whole step, in which it
captures its graphs; vLLM captures its own when the engine starts."""


@dataclass(frozen=True)
class Cell:
    """How a cell of the board is run: its job, rows of TRL's micro-batches, the share of the GPU's memory that vLLM
    takes (alone, and colocated with TRL), and whether contenders run apart."""

    shape: str = "0.6B"
    shortest: int = 512
    longest: int = 512
    prompts: int = 16
    micro_rows: int = 32
    memory_share: float = 0.25
    colocated_share: float = 0.25
    apart: bool = False

    def job(self):
        import _gpu_job as jobs

        return jobs.Job(self.shape, self.shortest, self.longest, prompts=self.prompts)


# The share holds the keys of all rows at once, if TRL leaves enough memory: 112 KiB a token, 144 KiB in the 4B shape.
BASE = Cell()
CELLS = {
    "512": BASE,
    "64-1024": replace(BASE, shortest=64, longest=1024, micro_rows=16),
    "1.7B": replace(BASE, shape="1.7B", apart=True),
    "4B": replace(BASE, shape="4B", micro_rows=16, memory_share=0.3, colocated_share=0.3, apart=True),
    "32-rows": replace(BASE, prompts=2),
    "1024-rows": replace(BASE, prompts=64, memory_share=0.6, colocated_share=0.5, apart=True),
    "4096-tokens": replace(
        BASE, shortest=4096, longest=4096, micro_rows=4, memory_share=0.92, colocated_share=0.5, apart=True
    ),
}


class Log:
    """The file of records. A line is written as soon as it is measured."""

    def __init__(self, path: Path, part: str, sitting: str) -> None:
        self._path, self._common = path, {"part": part, "sitting": sitting}

    def write(self, kind: str, **fields: object) -> None:
        line = json.dumps({"kind": kind, **self._common, **fields})
        with self._path.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def failure(self, contenders: Sequence[str], cells: Sequence[str], reason: str) -> None:
        self.write("failure", contenders=list(contenders), cells=list(cells), reason=reason)

    @contextlib.contextmanager
    def noting_failure(self, contenders: Sequence[str], cells: Sequence[str]) -> Iterator[None]:
        """Record an exception, and continue with the other contenders."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.failure(contenders, cells, f"{type(error).__name__}: {str(error).strip()[-400:]}")


class Contender:
    """A contender that takes turns with others in one process. After a failure it takes no further turns."""

    def __init__(self, label: str, cell: str, log: Log) -> None:
        import _gpu_job as jobs

        self._label, self._cell, self._log = label, cell, log
        self._job, self._memory = CELLS[cell].job(), jobs.OwnMemory()
        self._round, self._works = 0, True

    def take(self, *, alone: bool = False) -> None:
        if not self._works:
            return
        self._works = False
        with self._log.noting_failure([self._label], [self._cell]):
            self._memory.begin(alone=alone)
            measured = self._turn()
            fields = {"cell": self._cell, "contender": self._label, "round": self._round}
            self._log.write("round", **fields, **measured, gib=self._memory.end())
            self._round, self._works = self._round + 1, True

    def _turn(self) -> dict[str, object]:
        """Return seconds by stage, and tokens."""
        raise NotImplementedError


class Egpo(Contender):
    """Our training step, GRPO."""

    def __init__(self, cell: str, log: Log) -> None:
        super().__init__(tables.OURS, cell, log)
        self._ours = None

    def _turn(self) -> dict[str, object]:
        from egpo.local.draws import Draws
        from one_gpu import Ours, open_job

        job = self._job  # not self, which would keep this contender's memory allocated after its cell
        Draws.uniforms = lambda draws, keys, n, num_tokens: job.uniforms()
        begun = time.perf_counter()
        is_first = self._ours is None
        if is_first:
            self._ours = Ours(open_job(self._job), self._job, "grpo")
        stages = self._ours.run()
        if is_first:
            differences = ["random numbers of the sampler set so that rows end at their lengths", "nothing is written"]
            write_setup(self._log, self._label, differences, time.perf_counter() - begun)
        stages.pop("gib")
        measured = {"rollout": stages["sample"], "update": stages["update"], "step": stages["step"]}
        between = stages["step"] - stages["sample"] - stages["update"]
        return {**measured, "between": between, "stages": stages, "tokens": self._job.new_tokens}


class VLLMEngine:
    """vLLM's engine for the cells of a process, and the memory that it holds."""

    def __init__(self, cell: str, log: Log) -> None:
        import _gpu_job as jobs
        import _vllm_peer as peer

        job, folder = CELLS[cell].job(), weights_folder(CELLS[cell])
        jobs.save_with_weights(job, jobs.make_model(job), folder)
        self.memory = jobs.OwnMemory()
        self.memory.begin()
        begun = time.perf_counter()
        self.engine, arguments = peer.open_engine(job, folder, CELLS[cell].memory_share)
        start_s = time.perf_counter() - begun
        self.memory.end()
        differences = [f"engine {arguments} in this process", f"requests {peer.SAMPLING}, one max_tokens each"]
        write_setup(log, "vLLM", [*differences, *vllm_differences()], start_s)


class VLLM(Contender):
    """vLLM's rollout."""

    def __init__(self, label: str, cell: str, log: Log, engine: VLLMEngine) -> None:
        import _vllm_peer as peer

        super().__init__(label, cell, log)
        self._memory = engine.memory
        self._rollout = peer.Rollout(engine.engine, self._job, 0 if label == "vLLM" else None)

    def _turn(self) -> dict[str, object]:
        longest = self._job.longest if self._round else WARM_UP_TOKENS
        return self._rollout.run([min(length, longest) for length in self._job.lengths])


def measure_vllm(cells: Sequence[str], log: Log, rounds: int) -> None:
    labels = [label for label, part in tables.PART_OF.items() if part == "vllm"]
    engine = None
    with log.noting_failure(labels, cells):
        engine = VLLMEngine(cells[0], log)
    for cell in cells:
        write_limit(cell, log)
        contenders = [] if CELLS[cell].apart else [Egpo(cell, log)]
        if engine is not None:
            contenders += [VLLM(label, cell, log, engine) for label in labels]
        take_turns(contenders, rounds)


def measure_egpo(cells: Sequence[str], log: Log, rounds: int) -> None:
    for cell in cells:
        write_limit(cell, log)
        take_turns([Egpo(cell, log)], rounds)


def take_turns(contenders: list[Contender], rounds: int) -> None:
    """Let every contender warm up, then `rounds` times in turn, in alternating order."""
    alone = len(contenders) == 1
    for _ in range(rounds + 1):
        for contender in contenders:
            contender.take(alone=alone)
        contenders.reverse()
    contenders.clear()
    free()


class TRL:
    """Records of TRL's steps in one cell, and our step after each of them."""

    def __init__(self, label: str, cell: str, log: Log, engines: object) -> None:
        self._label, self._cell, self._log, self._engines = label, cell, log, engines
        self._ours = None if CELLS[cell].apart else Egpo(cell, log)
        self._begun = time.perf_counter()
        self.changed: dict[str, object] = {}
        self.num_steps = 0

    def after_step(self, step: dict[str, float]) -> None:
        if self.num_steps == 0:
            self._write_setup()
        rollout = step.get("sync", 0.0) + step["generate"]
        self._log.write(
            "round",
            cell=self._cell,
            contender=self._label,
            round=self.num_steps,
            rollout=rollout,
            between=step["sample"] - rollout,
            update=step["step"] - step["sample"],
            step=step["step"],
            stages={stage: step[stage] for stage in ("sync", "generate", "sample") if stage in step},
            tokens=step["tokens"],
            gib=step["own_gib"] + self._engines.reused_gib,
        )
        if self.num_steps and step["tokens"] != CELLS[self._cell].job().new_tokens:
            raise ValueError(f"{step['tokens']:.0f} tokens instead of {CELLS[self._cell].job().new_tokens}")
        self.num_steps += 1
        if self._ours is not None:
            self._ours.take()

    def _write_setup(self) -> None:
        import _vllm_peer as peer

        differences = [f"options {self.changed}", "every row ends at its length"]
        if "use_vllm" in self.changed:
            differences += [f"TRL starts vLLM with {self._engines.arguments}", *vllm_differences()]
        differences += peer.differences("trl")
        write_setup(self._log, self._label, differences, time.perf_counter() - self._begun)


def measure_trl(cells: Sequence[str], log: Log, rounds: int, way: str) -> None:
    import _trl_gpu_peer as trl

    label = "TRL, vLLM colocated" if way == "vllm" else "TRL, generate"
    engines = trl.VLLMEngines()
    for name in cells:
        write_limit(name, log)
        cell, records = CELLS[name], TRL(label, name, log, engines)
        options = dict(trl.WAYS[way])
        if way == "vllm":
            options["vllm_gpu_memory_utilization"] = cell.colocated_share
        with log.noting_failure([label], [name]):
            trl.train_beside(
                records.after_step,
                cell.job(),
                rounds + 1,
                cell.micro_rows,
                warm_up_tokens=WARM_UP_TOKENS,
                folder=weights_folder(cell),
                engines=engines,
                changed=records.changed,
                alone=cell.apart,
                **options,
            )
        records = None
        free()


def measure_verl(cells: Sequence[str], log: Log, rounds: int) -> None:
    import _gpu_job as jobs
    import _verl_gpu_peer as peer

    for name in cells:
        write_limit(name, log)
        cell, model = CELLS[name], weights_folder(CELLS[name])
        with log.noting_failure(["verl"], [name]), TemporaryDirectory() as folder:
            jobs.save_with_weights(cell.job(), jobs.make_model(cell.job()), model)
            free()
            for number, step in enumerate(peer.train(cell.job(), model, Path(folder), rounds + 1, cell.micro_rows)):
                log.write("round", cell=name, contender="verl", round=number, **step)
            differences = ["`egpo train` with engine=verl", *peer.differences(Path(folder)), *vllm_differences()]
            write_setup(log, "verl", differences, peer.start_s(Path(folder)))
        take_turns([Egpo(name, log)], rounds)


PARTS: dict[str, Callable[[Sequence[str], Log, int], None]] = {
    "egpo": measure_egpo,
    "vllm": measure_vllm,
    "trl-vllm": lambda names, log, rounds: measure_trl(names, log, rounds, "vllm"),
    "trl": lambda names, log, rounds: measure_trl(names, log, rounds, "generate"),
    "verl": measure_verl,
}


def free() -> None:
    """Free the memory of contenders that are done."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def write_limit(name: str, log: Log) -> None:
    from one_gpu import Limit

    limit = Limit.of(CELLS[name].job())
    log.write(
        "limit",
        cell=name,
        rollout=limit.sample_s,
        update=limit.update_s,
        bytes_per_s=limit.bytes_per_s,
        operations_per_s=limit.operations_per_s,
    )
    free()


def write_setup(log: Log, contender: str, differences: list[str], start_s: float) -> None:
    """Write versions and start of a contender. Ours and TRL's start includes the first step."""
    log.write("setup", contender=contender, versions=versions(), differences=differences, start_s=start_s)


def weights_folder(cell: Cell) -> Path:
    """Return the folder with the random weights of a shape, which all processes share."""
    positions = cell.job().config().max_position_embeddings
    folder = Path(gettempdir()) / f"speed_board_{os.getuid()}" / f"{cell.shape}-{positions}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def versions() -> dict[str, str]:
    import torch

    import egpo

    found = {"GPU": torch.cuda.get_device_name(0), "Python": sys.version.split()[0], "torch": torch.__version__}
    found["egpo"] = egpo.__version__
    for name in ("triton", "transformers", "vllm", "trl", "accelerate", "datasets", "verl", "ray"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def vllm_differences() -> list[str]:
    import _vllm_peer as peer

    settings = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("VLLM_USE_")]
    return [*settings, *peer.missing_parts(), *peer.differences("vllm")]


def run_part(part: str, names: Sequence[str], arguments: argparse.Namespace, sitting: str) -> None:
    """Run one part as a process of its own, with a time limit, and record a failure."""
    child = [sys.executable, __file__, "--child", part, "--cell", *names, "--rounds", str(arguments.rounds)]
    printed = arguments.out.with_name(f"{arguments.out.stem}.{part}.log")
    limit_s = arguments.limit_s or LIMIT_S[part]
    print(f"{part}: {', '.join(names)}, at most {limit_s} s", flush=True)
    start = time.perf_counter()
    with printed.open("a") as output:
        process = subprocess.Popen(
            [*child, "--out", str(arguments.out), "--sitting", sitting],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            reason = f"exit code {process.wait(limit_s)}"
        except subprocess.TimeoutExpired:
            reason = f"over its time limit of {limit_s} s"
        finally:
            _end(process)
    if reason != "exit code 0":
        last = " | ".join(printed.read_text(errors="replace").strip().splitlines()[-6:])
        contenders = [name for name, its_part in tables.PART_OF.items() if its_part == part]
        Log(arguments.out, part, sitting).failure(contenders, names, f"{reason}: {last[-600:]}")
    print(f"{part}: {reason}, {time.perf_counter() - start:.0f} s", flush=True)


def _end(process: subprocess.Popen) -> None:
    """End a part's process and all that it has started. The launcher of verl gets time to end verl's processes, which
    are in sessions of their own, and would keep memory of the GPU."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)  # raises ProcessLookupError when none is left
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(arguments: argparse.Namespace) -> None:
    names = list(CELLS) if arguments.cell == ["all"] else arguments.cell
    sitting = arguments.sitting or time.strftime("%Y%m%dT%H%M%S")
    core = [name for name in names if name in CORE]
    for group in [core, *([name] for name in names if name not in CORE)]:
        if not group:
            continue
        is_apart = CELLS[group[0]].apart
        for part in arguments.parts:
            if part != "egpo" or is_apart:
                run_part(part, group, arguments, sitting)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("board.jsonl"), help="file to which records are appended")
    parser.add_argument("--cell", nargs="+", choices=[*CELLS, "all"], default=list(CORE), help="default: the core")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="in this order; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds (default 3)")
    parser.add_argument("--limit-s", type=int, help=f"time limit of each part in seconds (default {LIMIT_S})")
    parser.add_argument("--show", type=Path, nargs="+", help="print the tables of these files, and measure nothing")
    parser.add_argument("--markdown", action="store_true", help="with --show: as Markdown")
    parser.add_argument("--child", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--sitting", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.show:
        records = tables.read(arguments.show)
        if arguments.markdown:
            print(tables.markdown(records), end="")
        else:
            tables.show(records, Console(width=190))
        return
    if arguments.child:
        PARTS[arguments.child](arguments.cell, Log(arguments.out, arguments.child, arguments.sitting), arguments.rounds)
        sys.stdout.flush()
        os._exit(0)  # vLLM's threads can keep an interpreter from ending
    import torch

    if not torch.cuda.is_available():
        print("No CUDA device: nothing to measure.")
        return
    run(arguments)


if __name__ == "__main__":
    main()
