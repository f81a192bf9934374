"""Show where the seconds of the first step on a GPU go, in a process with a cold and one with a warm cache of Triton.

    python benchmarks/first_step.py [--shape 0.6B] [--steps 2] [--json FILE] [--profile FOLDER]

The job is that of benchmarks/one_gpu.py: 256 rows of 512 tokens. Both processes share new folders for Triton's cache
and egpo's (verdicts of self-checks), so that the second one is a user's second run. Printed are the seconds from the
start of the interpreter to the first step, those of the first and of later steps by stage, and within the first step:

    capture    per graph: warm-up and capture; a graph that exists already costs nothing
    compile    Triton's compilations in this process; with a warm cache, the lookups
    prefill, buffers, weights, loss and gradients, optimizer

The parts contain one another: captures contain the compilation of the sampling kernels. `--profile` also writes
cProfile's list of the first step, in which every part takes longer. Needs a CUDA device.
"""

import time

_BORN = time.perf_counter()

import argparse  # noqa: E402
import cProfile  # noqa: E402
import functools  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import pstats  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections import defaultdict  # noqa: E402
from contextlib import suppress  # noqa: E402
from pathlib import Path  # noqa: E402

_LIMIT_S = 90
WATCHED = {
    "capture": ("egpo.local.sampling.cuda.token_graphs", "TokenGraphs", "_capture"),
    "prefill": ("egpo.local.sampling.cuda.decoder", "", "prefill"),
    "buffers": ("egpo.local.sampling.cuda.decoder", "Decoder", "_prepare"),
    "uniform numbers": ("egpo.local.draws", "Draws", "uniforms"),
    "self-check": ("egpo.local.models.loading", "", "require_agreement"),
    "loss and gradients": ("egpo.local.updates.update", "", "_accumulate"),
    "optimizer": ("egpo.local.updates.optimizer", "Optimizer", "step"),
    "compile": ("triton.runtime.jit", "JITFunction", "_do_compile"),
    "load to the GPU": ("triton.compiler.compiler", "CompiledKernel", "_init_handles"),
    "torch graph begins": ("torch.cuda", "graph", "__enter__"),
    "torch graph ends": ("torch.cuda", "graph", "__exit__"),
}
"""The functions that are timed, by name: module, class (empty: the module's own), function. One that does not
exist in the installed version is left out, and listed."""


class Watch:
    """The seconds and numbers of calls of the watched functions since `take`, and the longest compilations."""

    def __init__(self):
        self.missing, self._seconds, self._calls, self._longest = [], defaultdict(float), defaultdict(int), []
        for name, (module, owner, function) in WATCHED.items():
            try:
                holder = importlib.import_module(module)
                holder = getattr(holder, owner) if owner else holder
                setattr(holder, function, self._timed(name, getattr(holder, function)))
            except (ImportError, AttributeError) as error:
                self.missing.append(f"{name}: {error}")

    def _timed(self, name, work):
        @functools.wraps(work)
        def timed(*given, **named):
            start = time.perf_counter()
            try:
                return work(*given, **named)
            finally:
                seconds = time.perf_counter() - start
                self._seconds[name] += seconds
                self._calls[name] += 1
                self._longest.append((round(seconds, 3), name, _label(name, given)))

        return timed

    def take(self):
        seconds = {name: [round(value, 3), self._calls[name]] for name, value in self._seconds.items()}
        longest = sorted(self._longest, reverse=True)[:25]
        self._seconds.clear()
        self._calls.clear()
        self._longest = []
        return {"parts": seconds, "longest": longest}


def _label(name, given):
    """Return what a call was for: the name of a kernel, or the number of rows of a graph."""
    with suppress(Exception):  # a measurement is valid without its label
        if name == "compile":
            return given[0].fn.__name__
        if name == "capture":
            return f"{given[1]} rows"
        if name == "load to the GPU":
            return given[0].metadata.name
    return ""


def child(arguments):
    """Measure this process, and print one line of JSON at the end."""
    marks = {"interpreter": time.perf_counter() - _BORN}
    start = time.perf_counter()
    import torch

    marks["import torch"] = time.perf_counter() - start
    start = time.perf_counter()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    marks["CUDA context"] = time.perf_counter() - start
    start = time.perf_counter()
    import _gpu_job as jobs
    from egpo.local.draws import Draws
    from egpo.local.step import step
    from one_gpu import open_job

    marks["import egpo"] = time.perf_counter() - start
    job = jobs.Job(arguments.shape, arguments.shortest, arguments.longest)
    uniforms = job.uniforms()
    Draws.uniforms = lambda self, keys, n, num_tokens: uniforms
    watch = Watch()
    start = time.perf_counter()
    run = open_job(job)
    torch.cuda.synchronize()
    marks["open the run"] = time.perf_counter() - start
    opening, steps = watch.take(), []
    for number in range(arguments.steps):
        profile = cProfile.Profile() if arguments.profile and number == 0 else None
        start = time.perf_counter()
        if profile:
            profile.enable()
        step(run, number)
        torch.cuda.synchronize()
        if profile:
            profile.disable()
            _write_profile(profile, Path(arguments.profile) / f"{arguments.child}.txt")
        seconds = {"step": time.perf_counter() - start, **run.stages.take()}
        steps.append({"seconds": {name: round(value, 3) for name, value in seconds.items()}, **watch.take()})
    marks = {name: round(seconds, 3) for name, seconds in marks.items()}
    found = {"cache": arguments.child, "marks": marks, "opening": opening, "steps": steps, "missing": watch.missing}
    print("RESULT " + json.dumps(found), flush=True)


def _write_profile(profile, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for order in ("cumulative", "tottime"):
            pstats.Stats(profile, stream=file).sort_stats(order).print_stats(60)


def show(found):
    """Print the figures of a process, and compare its first step with its last one."""
    first, last = found["steps"][0]["seconds"], found["steps"][-1]["seconds"]
    print(f"\n== {found['cache']} cache; before the first step: {found['marks']}")
    print(f"while the run is opened: {found['opening']['parts']}")
    for stage, seconds in first.items():
        usual = last.get(stage, 0.0)
        print(f"{stage:>10}: first {seconds:7.3f} s, later {usual:7.3f} s, gap {seconds - usual:7.3f} s")
    for name, (seconds, calls) in sorted(found["steps"][0]["parts"].items(), key=lambda part: -part[1][0]):
        print(f"  {name:>20}: {seconds:7.3f} s in {calls} calls")
    print("  longest:", ", ".join(f"{name} {label} {seconds}" for seconds, name, label in found["steps"][0]["longest"]))
    if found["missing"]:
        print("  not watched:", found["missing"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.6B")
    parser.add_argument("--shortest", type=int, default=512)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--steps", type=int, default=2, help="steps of each process (default 2)")
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--profile", help="folder for cProfile's lists of the first steps")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return
    import torch

    if not torch.cuda.is_available():
        print("No CUDA device: nothing to measure.")
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "XDG_CACHE_HOME": f"{folder}/cache"}
        for cache in ("cold", "warm"):
            begin = time.perf_counter()
            command = [sys.executable, __file__, *sys.argv[1:], "--child", cache]
            try:
                done = subprocess.run(
                    command, env=os.environ | caches, capture_output=True, text=True, timeout=_LIMIT_S
                )
            except subprocess.TimeoutExpired as error:
                print(f"{cache}: not done after {_LIMIT_S} s; output: {error.stdout!r:.2000} {error.stderr!r:.2000}")
                continue
            lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            if done.returncode or not lines:
                print(f"{cache}: code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
                continue
            results.append({**json.loads(lines[-1].removeprefix("RESULT ")), "process_s": time.perf_counter() - begin})
            show(results[-1])
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
