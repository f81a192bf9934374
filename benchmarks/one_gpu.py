"""Time one GRPO step of the embedded engine on a GPU: against TRL's GRPOTrainer, against the limit of the hardware, and
EGPO against GRPO. All contenders run in one process, in turn, round after round.

    python benchmarks/one_gpu.py [--shape 0.6B] [--shortest 512 --longest 512] [--rounds 3] [--trl generate] [--apart]

The job: a Qwen3 shape with random weights in bfloat16, 16 prompts of 128 tokens, 16 responses to each, of one length or
of lengths drawn between two, one optimizer step over all of them. Needs a CUDA device, and TRL and datasets for the
peer. `--trl continuous` is another of TRL's ways to generate, for responses of one length; a row may end early there
by chance. benchmarks/speed_board.py has vLLM, and TRL with vLLM. `--trl none` leaves TRL out. If both do not fit into
memory together, `--apart` runs all steps of TRL before ours.

The limit counts the bytes and operations that the job cannot avoid, at the rates that a copy and a product of large
matrices reach in the same run:

    sample   every token reads all weights, the keys and values of the live rows, and those of a prompt once per group
    update   three products per weight and token, every prompt once, and attention's own, at half the product's rate
"""

import argparse
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table

import _gpu_job as jobs
import _trl_gpu_peer as trl
from egpo.config import Config
from egpo.local.draws import Draws
from egpo.local.models import loading
from egpo.local.run import Run, Stages, open_run
from egpo.local.step import step
from interleaved import Timing

Seconds = dict[str, float]


def open_job(job: jobs.Job, **sections: dict[str, object]) -> Run:
    """Return a run for a job. `sections` are further sections of its recipe. The random weights are drawn on the GPU,
    because a CPU needs a minute for them."""
    loading._random_model = lambda folder, dtype, seed: _named_model(job)
    with TemporaryDirectory() as folder:
        jobs.save(job, Path(folder))
        config = Config.model_validate(
            {
                "model": {"path": folder, "device": "cuda", "dtype": "bfloat16", "init": "random"}
                | sections.pop("model", {}),
                "task": {"name": "_words:Words", "settings": {"texts": job.texts()}},
                "rollout": {"prompts": job.prompts, "n": job.group, "max_response_tokens": job.longest}
                | sections.pop("rollout", {}),
                **sections,
            }
        )
        return open_run(config)


def _named_model(job: jobs.Job) -> torch.nn.Module:
    model = jobs.make_model(job)
    model.set_attn_implementation(loading.ATTENTION_NAME)
    return model


class Ours:
    """The training step of egpo with one estimator, on the policy of the run, with the seconds of its stages.

    `shares`: other contenders run in the same process; then the memory that they have cached is freed before a step,
    and its allocation takes up to a second of the step.
    """

    def __init__(self, run: Run, job: jobs.Job, estimator: str, *, shares: bool = False) -> None:
        algorithm = run.config.algorithm.model_copy(update={"estimator": estimator})
        self._run = replace(run, config=run.config.model_copy(update={"algorithm": algorithm}), stages=Stages())
        self._job, self._number, self._shares = job, 0, shares

    def run(self) -> Seconds:
        if self._shares:
            torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        outcome = step(self._run, self._number)
        torch.cuda.synchronize()
        seconds = {"step": time.perf_counter() - start, **self._run.stages.take()}
        assert round(outcome.metrics["response_length/mean"] * self._job.rows) == self._job.new_tokens
        self._number += 1
        print("ours", {stage: round(value, 3) for stage, value in seconds.items()}, flush=True)
        return {**seconds, "gib": torch.cuda.max_memory_allocated() / 2**30}


@dataclass(frozen=True)
class Limit:
    """Bytes and operations of a job, and the rates at which this GPU copies and multiplies."""

    sample_bytes: float
    update_operations: float
    bytes_per_s: float
    operations_per_s: float

    @property
    def sample_s(self) -> float:
        return self.sample_bytes / self.bytes_per_s

    @property
    def update_s(self) -> float:
        return self.update_operations / (self.operations_per_s / 2)

    @classmethod
    def of(cls, job: jobs.Job) -> "Limit":
        config = job.config()
        heads = config.head_dim * (2 * config.num_attention_heads + 2 * config.num_key_value_heads)
        layer = config.hidden_size * (heads + 3 * config.intermediate_size)
        body, head = config.num_hidden_layers * layer, config.vocab_size * config.hidden_size
        keys = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        longest = max(job.lengths)
        own = sum(length * (length + 1) // 2 for length in job.lengths)
        sample_bytes = 2 * (body + head) * longest + keys * (own + job.prompts * job.prompt_tokens * longest)
        tokens = job.prompts * job.prompt_tokens + job.new_tokens
        scores = own + job.new_tokens * job.prompt_tokens
        attention = 4 * 3.5 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * scores
        operations = 6 * (body * tokens + head * job.new_tokens) + attention
        return cls(sample_bytes, operations, bandwidth(), product_rate())


def _timed(work: object, times: int = 10) -> float:
    """Return the seconds of one call."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def bandwidth() -> float:
    """Return bytes per second, read plus written, of a copy of 4 GB."""
    source = torch.empty(2**32, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * 2**32 / _timed(lambda: target.copy_(source))


def product_rate() -> float:
    """Return operations per second of a product of random 8192 x 8192 matrices in bfloat16."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / _timed(lambda: a @ b)


class Turns:
    """The steps of egpo with each estimator, one after the other. Their runs are opened at the first turn."""

    def __init__(self, job: jobs.Job, estimators: Sequence[str] = ("grpo", "egpo"), *, shares: bool = False) -> None:
        self._job, self._contenders, self._shares = job, {}, shares
        self.seconds: dict[str, list[Seconds]] = {name: [] for name in estimators}
        self._order = list(self.seconds)

    def take(self) -> None:
        if not self._contenders:
            run = open_job(self._job)
            self._contenders = {name: Ours(run, self._job, name, shares=self._shares) for name in self.seconds}
        for name in self._order:
            self.seconds[name].append(self._contenders[name].run())
        self._order.reverse()  # alternate the order, so that it does not affect the result


def measure(job: jobs.Job, num_rounds: int, trl_way: str, micro_rows: int, apart: bool) -> dict[str, list[Seconds]]:
    """Return seconds by stage for every contender and round."""
    Draws.uniforms = lambda self, keys, n, num_tokens: job.uniforms()
    turns, num_steps = Turns(job, shares=trl_way != "none" and not apart), num_rounds + 1
    seconds = turns.seconds
    if trl_way != "none":
        between = (lambda step: None) if apart else (lambda step: turns.take())
        way = trl.WAYS[trl_way]
        seconds = seconds | {"TRL": trl.train_beside(between, job, num_steps, micro_rows, alone=apart, **way)}
        fewest = job.new_tokens if trl_way == "generate" else 0.98 * job.new_tokens
        for step_seconds in seconds["TRL"]:
            assert fewest <= step_seconds["tokens"] <= job.new_tokens
            step_seconds["update"] = step_seconds["step"] - step_seconds["sample"]
    if trl_way == "none" or apart:
        gc.collect()  # TRL's trainer holds itself
        torch.cuda.empty_cache()
        print(f"{torch.cuda.memory_allocated() / 2**30:.1f} GiB allocated before ours", flush=True)
        for _ in range(num_steps):
            turns.take()
    for name, rounds in seconds.items():
        print(f"{name}: first step, including compilation and graph capture: {rounds[0]['step']:.1f} s", flush=True)
    return {name: rounds[1:] for name, rounds in seconds.items()}


def timing(rounds: list[Seconds], stage: str) -> Timing:
    return Timing([seconds[stage] for seconds in rounds])


def show(job: jobs.Job, seconds: dict[str, list[Seconds]], limit: Limit, console: Console) -> None:
    table = Table("", "sample, s", "update, s", "step, s", "tokens/s", "GiB", "times the limit", "TRL takes, times")
    whole_limit = limit.sample_s + limit.update_s
    table.add_row("limit", f"{limit.sample_s:.2f}", f"{limit.update_s:.2f}", f"{whole_limit:.2f}")
    for name, rounds in seconds.items():
        whole = timing(rounds, "step")
        stages = [f"{timing(rounds, stage).median_s:.2f}" for stage in ("sample", "update", "step")]
        against = str(timing(seconds["TRL"], "step").over(whole)) if "TRL" in seconds else ""
        rate, memory = f"{job.new_tokens / whole.median_s:,.0f}", f"{timing(rounds, 'gib').median_s:.1f}"
        table.add_row(name, *stages, rate, memory, f"{whole.median_s / whole_limit:.2f}", against)
    console.print(f"{job}: {limit.bytes_per_s / 1e12:.2f} TB/s, {limit.operations_per_s / 1e12:.0f} TFLOP/s")
    console.print(table)
    grpo, egpo = (timing(seconds[name], "step") for name in ("grpo", "egpo"))
    console.print(f"An EGPO step takes {egpo.over(grpo)} times a GRPO step.")
    measured = timing(seconds["egpo"], "measure").over(egpo)
    console.print(f"Segments and estimator are {measured.median:.2%} of a step.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=jobs.SHAPES, default="0.6B")
    parser.add_argument("--shortest", type=int, default=512)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trl", choices=["none", "generate", "continuous"], default="generate")
    parser.add_argument("--trl-micro-rows", type=int, default=trl.MICRO_ROWS, help="rows in one of TRL's micro-batches")
    parser.add_argument("--apart", action="store_true", help="run all steps of TRL before ours")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("No CUDA device: nothing to measure.")
        return
    job = jobs.Job(arguments.shape, arguments.shortest, arguments.longest)
    console = Console(width=140)
    if arguments.trl == "continuous" and arguments.shortest < arguments.longest:
        parser.error("--trl continuous cannot end rows at given lengths: give --shortest as --longest")
    trl_way = arguments.trl if trl.is_installed() else "none"
    seconds = measure(job, arguments.rounds, trl_way, arguments.trl_micro_rows, arguments.apart)
    show(job, seconds, Limit.of(job), console)


if __name__ == "__main__":
    main()
