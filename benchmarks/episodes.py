"""Time episodes of tool calls: against responses of one turn with as many tokens, and a whole training step against
TRL's GRPOTrainer with `environment_factory`. All contenders run in one process, in turn, round after round.

    make .env-trl/.ready
    .venv/bin/python benchmarks/episodes.py [--model FOLDER] [--rounds 7]
    python benchmarks/episodes.py --device cuda --model FOLDER [--prompts 64 --group 16]

`--model` is a model that knows how to call tools, best one that a cold start on the task `toolbox` has made: without
calls an episode has one turn. Without it, egpo-tiny gets such a cold start first (some minutes on two cores).

**Episodes against single turns.** `toolbox`, with the history kept (one sequence) and per turn (a prompt for each
turn). Tokens are all those that follow the prompt, sampled or written by the environment. Two kinds of single turns:
all rows have the mean length of the episodes; and every row has the length of its episode, which is the least that
any engine has to compute. `tools` is the time of the environments alone, with the same texts.

**One step**: sample, judge, update. egpo and TRL run the same class (_toolbox_world.py) with the same prompts and
limits; egpo hosts it in worker processes, and a third contender has the package's own `toolbox`, which runs in the
process. Both keep the history. Rewards are judged, then replaced by 0 and 1 in turn: egpo leaves rows without an
advantage out of the update, and TRL does not. Lengths are what the model samples: tokens and turns are printed. The
limit on a CPU is that of _embedded_limit.py, for rows of the mean length. Without TRL's packages only ours is measured.
With --processor-time the time of egpo's worker processes is not counted.
"""

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import _trl_episodes as trl
from _embedded_job import Job
from _embedded_limit import Products
from _toolbox_world import HIDE_TOOLS, SETTINGS
from egpo.assets import MODELS
from egpo.cold_starts import cold_start_plan, make_cold_start
from egpo.config import Config
from egpo.environments import EnvironmentHost, Episode, EpisodeLimits
from egpo.local import collect
from egpo.local.collect import judge
from egpo.local.draws import Draws
from egpo.local.models.policy import Policy
from egpo.local.rollouts import Rollouts
from egpo.local.run import Run, Stages, open_run
from egpo.local.sampling.sample import sample
from egpo.local.step import step
from egpo.rewards.verdict import Verdict
from embedded_cpu import Start, take_cores
from interleaved import Timing, time_interleaved

Seconds = dict[str, float]


@dataclass(frozen=True)
class EpisodeJob:
    """The episodes of a step: problems, samples of each, and the limits of an episode."""

    model: Path
    device: str
    prompts: int
    group: int
    max_tokens: int
    max_turns: int

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    def open(self, task: str, history: str, model: Path | None = None) -> Run:
        """Open a run whose task has as many problems as a step."""
        episodes = {"max_turns": self.max_turns, "history": history}
        limits = {"max_response_tokens": self.max_tokens, "episodes": episodes}
        dtype = "bfloat16" if self.device == "cuda" else "float32"
        model_settings = {"path": str(model or self.model), "device": self.device, "dtype": dtype}
        config = {
            "model": model_settings,
            "task": {"name": task, "settings": {**SETTINGS, "train": self.prompts, "test": 1}},
            "rollout": {"prompts": self.prompts, "n": self.group, **limits},
            "update": {"lr": 1e-6},
        }
        return open_run(Config.model_validate(config))


def settle_on(device: str) -> Callable[[], None]:
    return torch.cuda.synchronize if device == "cuda" else lambda: None


@dataclass(frozen=True)
class EndingDraws(Draws):
    """Random numbers with which row b has `lengths[b]` tokens, if the last token of the vocabulary ends a response."""

    lengths: tuple[int, ...] = ()

    def uniforms(self, keys: Any, n: int, num_tokens: int) -> Tensor:
        drawn = super().uniforms(keys, n, num_tokens)
        for row, length in enumerate(self.lengths):
            drawn[row, length - 1] = 1 - 2**-53  # selects the last token of positive probability
        return drawn


class Samplers:
    """The contenders of the first part: episodes, single turns of as many tokens, and the environments alone."""

    def __init__(self, job: EpisodeJob) -> None:
        self._job = job
        self._run = job.open("toolbox", "keep")
        self._single = job.open("_toolbox_world:SingleTurns", "keep").task
        self._problems = self._run.task.problems("train")
        # One policy for each set of stop tokens: on a GPU, a policy has its own captured graphs.
        self._endless = replace(self._run.policy, stop_ids=frozenset({1 << 30}))
        self._ending = replace(self._run.policy, stop_ids=frozenset({len(self._run.policy.head_VD) - 1}))
        self.kept, self.per_turn = self.episodes("keep"), self.episodes("per_turn")
        self.lengths = tuple(len(response) for response in self.kept.responses())
        self.mean = round(sum(self.lengths) / len(self.lengths))
        self._host = EnvironmentHost("toolbox")

    def episodes(self, history: str) -> Rollouts:
        settings = self._run.config.rollout
        settings = settings.model_copy(update={"episodes": settings.episodes.model_copy(update={"history": history})})
        return sample(self._run.policy, self._run.task, self._problems, settings, Draws(1))

    def mean_length(self) -> Rollouts:
        return self._single_turns(self._endless, self.mean, Draws(1))

    def same_lengths(self) -> Rollouts:
        return self._single_turns(self._ending, max(self.lengths), EndingDraws(1, lengths=self.lengths))

    def _single_turns(self, policy: Policy, num_tokens: int, draws: Draws) -> Rollouts:
        settings = self._run.config.rollout.model_copy(update={"max_response_tokens": num_tokens})
        return sample(policy, self._single, self._problems, settings, draws)

    def tools(self) -> None:
        """Play the kept episodes again, without a model."""
        limits = EpisodeLimits(turns=self._job.max_turns)
        for row in self.kept.episodes:
            episode = Episode(self._host, dict(row.record.row), limits)
            episode.start()
            for turn in row.record.turns:
                episode.assistant(turn.text, turn.cut_off, opened=turn.opened)
            episode.stop()

    def contenders(self) -> dict[str, Callable[[], object]]:
        return {
            "single turns, mean length": self.mean_length,
            "single turns, same lengths": self.same_lengths,
            "episodes, keep": lambda: self.episodes("keep"),
            "episodes, per turn": lambda: self.episodes("per_turn"),
            "tools": self.tools,
        }


def conversation_tokens(rollouts: Rollouts) -> int:
    """Count the tokens after the first prompts, where each turn has a prompt of its own."""
    tokens = 0
    for row, response in zip(rollouts.episodes, rollouts.responses(), strict=True):
        (start, end), prompts = row.turns[-1], row.prompts or ((),)
        tokens += len(prompts[-1]) - len(prompts[0]) + (end - start if row.prompts else len(response))
    return tokens


def recomputed_tokens(rollouts: Rollouts) -> int:
    """Count all tokens that pass through the model after the first prompts, where each turn has a prompt of its own."""
    later = sum(len(prompt) for row in rollouts.episodes for prompt in (row.prompts or ())[1:])
    return later + sum(end - start for row in rollouts.episodes for start, end in row.turns)


def compare_with_single_turns(job: EpisodeJob, rounds: int, console: Console) -> None:
    samplers = Samplers(job)
    same = samplers.same_lengths()
    tokens = {
        "single turns, mean length": job.rows * samplers.mean,
        "single turns, same lengths": sum(map(len, same.responses())),
        "episodes, keep": sum(samplers.lengths),
        "episodes, per turn": conversation_tokens(samplers.per_turn),
    }
    timings = time_interleaved(samplers.contenders(), rounds, settle_on(job.device))
    rates = {name: Timing([seconds / tokens[name] for seconds in timings[name].seconds]) for name in tokens}
    num_turns = sum(len(row.turns) for row in samplers.kept.episodes) / job.rows
    sampled = float(samplers.kept.mask_BT.sum()) / sum(samplers.lengths)
    console.print(
        f"{job.rows} episodes of {min(samplers.lengths)} to {max(samplers.lengths)} tokens, mean {samplers.mean}, "
        f"{num_turns:.1f} turns, {sampled:.0%} of the tokens sampled"
    )
    if tuple(map(len, same.responses())) != samplers.lengths:
        console.print("The single turns of the same lengths do not all end where they should: see their tokens.")
    table = Table("", "seconds", "tokens", "tokens/s", "speed, of the mean length", "of the same lengths")
    for name in tokens:
        against = [str(rates[f"single turns, {kind} length{'s' * (kind == 'same')}"].over(rates[name]))
                   for kind in ("mean", "same")]  # fmt: skip
        rate = f"{1 / rates[name].median_s:,.0f}"
        table.add_row(name, f"{timings[name].median_s:.3f}", f"{tokens[name]:,}", rate, *against)
    table.add_row("tools", f"{timings['tools'].median_s:.3f}")
    console.print(table)
    recomputed = recomputed_tokens(samplers.per_turn)
    rate = Timing([seconds / recomputed for seconds in timings["episodes, per turn"].seconds])
    console.print(
        f"Per turn, {recomputed:,} tokens pass through the model after the first prompts, the history of each turn "
        f"included: {1 / rate.median_s:,.0f} tokens/s, {rates['single turns, mean length'].over(rate)} of the mean "
        "length's speed."
    )


class Steps:
    """The training steps of egpo with one environment, each from the same weights, with the seconds of its stages."""

    def __init__(self, run: Run, device: str) -> None:
        self._run, self._start = replace(run, stages=Stages()), Start(run)
        self._number, self._settle = 0, settle_on(device)
        self.run = run

    def take(self) -> Seconds:
        self._start.restore()
        self._number += 1
        self._settle()
        start = time.perf_counter()
        outcome = step(self._run, self._number)
        self._settle()
        whole = time.perf_counter() - start
        stages, rollouts = self._run.stages.take(), outcome.batch.rollouts
        return {
            "step": whole,
            "sample": stages["sample"],
            "update": whole - stages["sample"],
            "tokens": float(sum(map(len, rollouts.responses()))),
            "turns": sum(len(row.turns) for row in rollouts.episodes) / len(rollouts),
        }


def alternating_judge(*arguments: Any) -> tuple[Verdict, ...]:
    """Judge the rollouts of a step, and replace the rewards by 0 and 1 in turn."""
    return tuple(replace(verdict, reward=float(row % 2)) for row, verdict in enumerate(judge(*arguments)))


def compare_with_trl(job: EpisodeJob, rounds: int, console: Console) -> None:
    collect.judge = alternating_judge
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with_hidden_tools(job.model, folder)
        ours = {
            "egpo, the same class": Steps(job.open("_toolbox_world:WorldEpisodes", "keep", folder), job.device),
            "egpo, toolbox": Steps(job.open("toolbox", "keep", folder), job.device),
        }
        seconds: dict[str, list[Seconds]] = {name: [] for name in ours}

        def take() -> None:
            for name, steps in ours.items():
                seconds[name].append(steps.take())

        run = ours["egpo, the same class"].run
        absent = trl.missing()
        if absent:
            console.print(f"TRL is left out: {absent} not installed. To install: make .env-trl/.ready")
            for _ in range(rounds + 1):
                take()
        else:
            problems = run.task.problems("train")
            limits = (job.group, job.max_tokens, job.max_turns)
            seconds["TRL"] = trl.train_beside(take, folder, problems, *limits, rounds + 1, job.device)
        limit = limit_of(run, job, seconds) if job.device == "cpu" else None
    show_steps({name: values[1:] for name, values in seconds.items()}, limit, console)


def with_hidden_tools(model: Path, folder: Path) -> None:
    """Copy a model; its chat template becomes that of egpo-tiny, without a list of tools."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    settings = folder / "tokenizer_config.json"
    kept = {name: value for name, value in json.loads(settings.read_text()).items() if name != "chat_template"}
    settings.write_text(json.dumps(kept))
    template = (MODELS["egpo-tiny"] / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(HIDE_TOOLS + template)


def limit_of(run: Run, job: EpisodeJob, seconds: dict[str, list[Seconds]]) -> float:
    """Return the seconds of the matrix products of a step with rows of the mean length: the least of three tries."""
    tokens = [one["tokens"] for one in seconds["egpo, the same class"][1:]]
    prompts = [len(prompt) for prompt in sample(run.policy, run.task, run.task.problems("train"),
               run.config.rollout.model_copy(update={"n": 1}), Draws(1)).prompts]  # fmt: skip
    mean_prompt, mean_new = round(sum(prompts) / len(prompts)), round(sum(tokens) / len(tokens) / job.rows)
    products = Products(run, Job(job.prompts, job.group, mean_prompt, mean_new))
    return min(products.with_attention([products.run()])[0]["step"] for _ in range(3))


def show_steps(seconds: dict[str, list[Seconds]], limit: float | None, console: Console) -> None:
    table = Table(
        "", "sample, s", "update, s", "step, s", "tokens", "turns", "times the limit", "TRL takes", "per token"
    )
    if limit is not None:
        table.add_row("limit", "", "", f"{limit:.2f}")
    for name, rounds in seconds.items():
        whole = Timing([one["step"] for one in rounds])
        stages = [f"{Timing([one[stage] for one in rounds]).median_s:.2f}" for stage in ("sample", "update", "step")]
        tokens = Timing([one["tokens"] for one in rounds]).median_s
        turns = Timing([one["turns"] for one in rounds]).median_s
        beside = "" if limit is None else f"{whole.median_s / limit:.2f}"
        against = ["", ""]
        if "TRL" in seconds:
            peer = seconds["TRL"]
            each = Timing([one["step"] / one["tokens"] for one in rounds])
            peer_each = Timing([one["step"] / one["tokens"] for one in peer])
            against = [str(Timing([one["step"] for one in peer]).over(whole)), str(peer_each.over(each))]
        table.add_row(name, *stages, f"{tokens:,.0f}", f"{turns:.2f}", beside, *against)
    console.print(table)


def cold_started() -> Path:
    """Return egpo-tiny after a cold start on the job's task, made on the first call, in `runs/cold_starts`."""
    config = {
        "model": {"path": "egpo-tiny"},
        "task": {"name": "toolbox", "settings": {**SETTINGS, "train": 2048, "test": 128}},
        "cold_start": {"epochs": 3, "lr": 1e-3, "schedule": "cosine", "thinking": True},
    }
    plan = cold_start_plan(Config.model_validate(config))
    assert plan is not None
    make_cold_start(plan)
    return plan.model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="model folder (default: egpo-tiny after a cold start)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8, help="episodes of each problem")
    parser.add_argument("--max-tokens", type=int, default=256, help="limit of the tokens of an episode")
    parser.add_argument("--max-turns", type=int, default=4)
    parser.add_argument("--part", choices=("single", "trl", "both"), default="both")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="measure the processor time of one core instead of wall time, for a machine with other load",
    )
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        take_cores(1 if arguments.processor_time else 2)
    if arguments.processor_time:
        time.perf_counter = time.process_time  # for all contenders, TRL and our own stages included
    console = Console(width=140)
    limits = (arguments.prompts, arguments.group, arguments.max_tokens, arguments.max_turns)
    job = EpisodeJob(arguments.model or cold_started(), arguments.device, *limits)
    console.print(f"{os.getloadavg()[0]:.1f} processes run on {os.cpu_count()} cores before the measurement")
    if arguments.part in ("single", "both"):
        compare_with_single_turns(job, arguments.rounds, console)
    if arguments.part in ("trl", "both"):
        compare_with_trl(job, arguments.rounds, console)


if __name__ == "__main__":
    main()
