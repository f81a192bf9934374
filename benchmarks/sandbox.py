"""Measure the cost of the sandbox: the same programs in it and in a bare interpreter, interleaved, with all cores busy.

    python benchmarks/sandbox.py [--rounds 60] [--json]

The target is a ratio of at most 1.5 for a program with one test. The tests of one program share one start, so that with
ten tests the sandbox is faster. The ratio of wall time is computed within a round (median, quartiles), that of
processor time over all rounds. `stripped` is the bare interpreter without `site`: the lowest cost of any start of
Python.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from egpo.rewards.sandbox import Sandbox, SandboxJob, Scripts, require_sandbox
from interleaved import Timing, time_interleaved

_ADD = "a, b = map(int, input().split())\nprint(a + b)\n"
_DIJKSTRA = """\
import heapq
from collections import defaultdict
n = int(input())
edges = defaultdict(list)
for i in range(n):
    for step in (1, 7, 31):
        edges[i].append(((i + step) % n, (i * step) % 97 + 1))
best, queue = {0: 0}, [(0, 0)]
while queue:
    cost, node = heapq.heappop(queue)
    if cost > best[node]:
        continue
    for target, weight in edges[node]:
        if cost + weight < best.get(target, 10 ** 9):
            best[target] = cost + weight
            heapq.heappush(queue, (cost + weight, target))
print(sum(best.values()))
"""
PROGRAMS = {
    "add two numbers, 1 test": (_ADD, [b"1 2\n"]),
    "shortest paths, 1 test": (_DIJKSTRA, [b"2000\n"]),
    "add two numbers, 10 tests": (_ADD, [b"1 2\n"] * 10),
}


def bare(path: str, stdins: list[bytes], options: tuple[str, ...] = ()) -> list[bytes]:
    command = [sys.executable, *options, path]
    return [subprocess.run(command, input=stdin, capture_output=True, check=True).stdout for stdin in stdins]


def sandboxed(sandbox: Sandbox, program: str, stdins: list[bytes]) -> list[bytes]:
    return [outcome.output for outcome in sandbox.run(SandboxJob(program, Scripts(tuple(stdins)))).outcomes]


def worker(program: str, stdins: list[bytes], rounds: int) -> tuple[dict[str, Timing], dict[str, float]]:
    """Return seconds of wall time per round and of processor time in total, for each way of running a program."""
    sandbox = require_sandbox()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "solution.py")
        Path(path).write_text(program)
        ways: dict[str, Callable[[], list[bytes]]] = {
            "bare": lambda: bare(path, stdins),
            "sandbox": lambda: sandboxed(sandbox, program, stdins),
            "stripped": lambda: bare(path, stdins, ("-I", "-S")),
        }
        outputs = [run() for run in ways.values()]
        assert outputs[0] == outputs[1] == outputs[2], outputs
        spent = dict.fromkeys(ways, 0.0)
        return time_interleaved({way: metered(way, run, spent) for way, run in ways.items()}, rounds), spent


def metered(way: str, run: Callable[[], object], spent: dict[str, float]) -> Callable[[], None]:
    """Call `run`, and add its processor time and that of its children to `spent[way]`."""

    def meter() -> None:
        before = processor_seconds()
        run()
        spent[way] += processor_seconds() - before

    return meter


def processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(program: str, stdins: list[bytes], rounds: int, workers: int) -> dict[str, float | str]:
    with get_context("spawn").Pool(workers) as pool:
        parts = pool.starmap(worker, [(program, stdins, rounds)] * workers)
    merged = {way: Timing([second for timing, _ in parts for second in timing[way].seconds]) for way in parts[0][0]}
    spent = {way: sum(part[way] for _, part in parts) for way in merged}
    return {
        "bare_ms": 1e3 * merged["bare"].median_s,
        "sandbox_ms": 1e3 * merged["sandbox"].median_s,
        "clock_ratio": str(merged["sandbox"].over(merged["bare"])),
        "processor_ratio": spent["sandbox"] / spent["bare"],
        "processor_ratio_to_stripped": spent["sandbox"] / spent["stripped"],
        "programs_per_second_and_core": 1 / (spent["sandbox"] / (workers * (rounds + 1))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sandbox = require_sandbox()
    results = {name: measure(*case, options.rounds, options.workers) for name, case in PROGRAMS.items()}
    if options.json:
        print(json.dumps({"tier": sandbox.tier, "workers": options.workers, "results": results}, indent=2))
        return
    print(f"tier {sandbox.tier}, {options.workers} workers, {options.rounds} rounds each, interleaved")
    for name, result in results.items():
        print(
            f"{name:26s} bare {result['bare_ms']:5.1f} ms, sandbox {result['sandbox_ms']:5.1f} ms; "
            f"wall-time ratio {result['clock_ratio']}, processor-time ratio {result['processor_ratio']:.2f} "
            f"(to a stripped interpreter {result['processor_ratio_to_stripped']:.2f}); "
            f"{result['programs_per_second_and_core']:.0f} programs per second and core"
        )


if __name__ == "__main__":
    main()
