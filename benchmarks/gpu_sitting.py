"""Measure on one GPU what the documentation lists as not measured there: every part with its time limit, in this order.

    python benchmarks/gpu_sitting.py --list
    python benchmarks/gpu_sitting.py --out gpu --minutes 9.5            parts that fit into the time and are not done
    python benchmarks/gpu_sitting.py --out gpu updates board-vllm       these parts, even if they are done

A rented GPU is paid by the minute. So a part that fails or hangs does not stop the others, no part is begun that does
not fit into the minutes left, and the same command continues with the missing parts. `OUT/<part>.log` has the
output, `OUT/sitting.jsonl` a line per part that ran, and other files go where the command of the part says. Needs a
CUDA device; verl, vLLM and TRL for their parts (environments/verl-gpu, environments/trl).
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Part:
    """A command, its time limit in seconds, and what its figures are for. `OUT` in a word is the folder of results."""

    command: str
    limit_s: int
    purpose: str


def _board(part: str, *cells: str) -> str:
    chosen = f" --cell {' '.join(cells)}" if cells else ""
    return f"{{python}} benchmarks/speed_board.py --out OUT/board.jsonl --parts {part}{chosen}"


PARTS = {
    "updates": Part(
        "{python} -m tests.verl.compare_updates --device cuda --out OUT/updates.json",
        150,
        "verl_plugin.md: the same batch on both engines",
    ),
    "board-vllm": Part(_board("vllm"), 270, "speed.md: the board's core beside vLLM"),
    "board-trl-vllm": Part(_board("trl-vllm"), 300, "speed.md: the board's core beside TRL with vLLM"),
    "board-verl": Part(_board("verl", "512"), 320, "speed.md: the board beside verl"),
    "tests": Part("make test-gpu PYTEST_OPTIONS='-n 12 -q'", 300, "speed.md: tests on the GPU"),
    "first-step": Part("{python} benchmarks/first_step.py --json OUT/first_step.json", 120, "speed.md: the first step"),
    "checkpoints": Part(
        "{python} benchmarks/checkpoints.py --delay --device cuda --weights 0.6e9 --rounds 1 --json OUT/delays.json",
        90,
        "speed.md: checkpoints",
    ),
    "padding": Part(
        "{python} benchmarks/verl_padding.py --device cuda --python {python}",
        120,
        "verl_plugin.md: batches without padding",
    ),
    "episodes": Part(
        "{python} benchmarks/episodes.py --device cuda --prompts 16 --group 16 --rounds 3",
        300,
        "speed.md: episodes on a GPU, beside single turns and TRL",
    ),
    "plan": Part("{python} benchmarks/plan.py --only long checkpointing reference", 120, "speed.md: estimates"),
    "plan-verl": Part("{python} benchmarks/plan.py --verl", 560, "scale.md: verl's memory and seconds on one GPU"),
    "board-trl": Part(_board("trl"), 440, "speed.md: the board's core beside TRL's generate"),
    **{
        f"board-{cell}": Part(_board("vllm trl-vllm trl verl egpo", cell), 560, f"speed.md: the board's cell {cell}")
        for cell in ("1.7B", "4B", "32-rows", "1024-rows", "4096-tokens")
    },
}
"""Parts in the order in which they are run. The most needed figures come first. `{python}` is this interpreter."""


@dataclass(frozen=True)
class Outcome:
    """How a part ended: its exit code, None if it ran over its limit, and the seconds that it took."""

    part: str
    code: int | None
    seconds: float
    last: str

    @property
    def is_done(self) -> bool:
        return self.code == 0


def run_part(name: str, part: Part, out: Path) -> Outcome:
    """Run a part in a session of its own, and end every process that it started there."""
    words = part.command.replace("{python}", sys.executable).replace("OUT", str(out.resolve()))
    known = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH")]))
    log, start = out / f"{name}.log", time.monotonic()
    with log.open("a") as stream:
        process = subprocess.Popen(
            words, shell=True, cwd=ROOT, stdout=stream, stderr=stream, start_new_session=True,
            env=os.environ | {"PYTHONPATH": known},
        )  # fmt: skip
        code = None
        try:
            code = process.wait(part.limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(errors="replace").strip().splitlines()
    return Outcome(name, code, round(time.monotonic() - start, 1), lines[-1][:200] if lines else "")


def read_outcomes(out: Path) -> dict[str, Outcome]:
    """Return the last outcome of each part that ran."""
    path = out / "sitting.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return {one.part: one for one in (Outcome(**json.loads(line)) for line in lines)}


def run_parts(names: list[str], out: Path, minutes: float, parts: dict[str, Part] = PARTS) -> dict[str, str]:
    """Run the parts that fit into the minutes. Return why each of the others was not run."""
    end, left_out = time.monotonic() + 60 * minutes, {}
    for name in names:
        left_s = end - time.monotonic()
        if parts[name].limit_s > left_s:
            left_out[name] = f"may take {parts[name].limit_s} s, and {left_s:.0f} s are left"
            continue
        print(f"{name}: at most {parts[name].limit_s} s ...", flush=True)
        outcome = run_part(name, parts[name], out)
        with (out / "sitting.jsonl").open("a") as stream:
            stream.write(json.dumps(vars(outcome)) + "\n")
        print(f"{name}: {_ended(outcome)}", flush=True)
    return left_out


def _ended(outcome: Outcome) -> str:
    how = {0: "done", None: "over its time limit"}.get(outcome.code, f"failed with exit code {outcome.code}")
    return f"{how}, {outcome.seconds:.0f} s"


def show(out: Path, left_out: dict[str, str], parts: dict[str, Part] = PARTS) -> None:
    outcomes, table = read_outcomes(out), Table("part", "outcome", "for", "last line of its output")
    for name, part in parts.items():
        how = _ended(outcomes[name]) if name in outcomes else left_out.get(name, "not run yet")
        table.add_row(name, how, part.purpose, outcomes[name].last if name in outcomes else "")
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"default: all that are missing. {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=Path("gpu_sitting"), help="folder of results")
    parser.add_argument("--minutes", type=float, default=60, help="begin no part that may end later (default 60)")
    parser.add_argument("--list", action="store_true", help="print the parts with their commands, and run nothing")
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"no part is called {unknown[0]}; choose from {', '.join(PARTS)}")
    if options.list:
        table = Table("part", "limit, s", "for", "command")
        for name, part in PARTS.items():
            table.add_row(name, str(part.limit_s), part.purpose, part.command.replace("{python}", "python"))
        Console(width=190).print(table)
        return
    import torch

    if not torch.cuda.is_available():
        print("No CUDA device: nothing to measure. `--list` shows what would be run.")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    done = {name for name, outcome in read_outcomes(options.out).items() if outcome.is_done}
    show(
        options.out,
        run_parts(options.parts or [name for name in PARTS if name not in done], options.out, options.minutes),
    )


if __name__ == "__main__":
    main()
