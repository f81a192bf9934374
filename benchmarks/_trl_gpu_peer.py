"""TRL's GRPOTrainer on a job of benchmarks/_gpu_job.py, with its fastest options.

All responses are generated at once; weights and arithmetic are bfloat16; there is no gradient checkpointing, reference
model, logging or saving; AdamW has the same settings as ours. Every response ends at its length: in TRL's `generate`
by a logits processor, in vLLM by the request's `max_tokens`.
"""

import dataclasses
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from transformers import LogitsProcessor, LogitsProcessorList

import _gpu_job as jobs
import _vllm_peer as vllm_peer
import _words

MICRO_ROWS = 32


def is_installed() -> bool:
    return find_spec("trl") is not None


WAYS: dict[str, dict[str, object]] = {
    "generate": {},
    "continuous": {"use_transformers_continuous_batching": True},
    "vllm": {"use_vllm": True, "vllm_mode": "colocate", "generation_kwargs": vllm_peer.SAMPLING},
}
"""How TRL may generate. `continuous` cannot end rows at given lengths: it is for equal lengths."""


class EndAt(LogitsProcessor):
    """Logits processor that allows the end token exactly where a row has its length."""

    def __init__(self, job: jobs.Job, lengths: list[int]) -> None:
        self._length_B = torch.tensor(lengths)
        self._prompt_tokens, self._end = job.prompt_tokens, job.end

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._length_B = self._length_B.to(scores.device)
        ends_B = self._length_B == input_ids.shape[1] - self._prompt_tokens + 1
        scores[:, self._end] = torch.where(ends_B, 1e4, -torch.inf).to(scores.dtype)
        return scores


class StageTimer:
    """The seconds and peak memory of TRL's steps, by stage. `alone`: no other contender is in the process."""

    def __init__(self, *, alone: bool = False) -> None:
        self.steps: list[dict[str, float]] = []
        self.memory, self._alone = jobs.OwnMemory(), alone
        self.memory.begin()  # what the trainer allocates before its first step

    def begin_step(self) -> None:
        if not self.steps:
            self.memory.end()
        self.memory.begin(alone=self._alone)
        torch.cuda.synchronize()
        self.steps.append({"begin": time.perf_counter()})

    def end_step(self) -> None:
        torch.cuda.synchronize()
        step = self.steps[-1]
        step["step"] = time.perf_counter() - step.pop("begin")
        step["gib"] = torch.cuda.max_memory_allocated() / 2**30
        step["own_gib"] = self.memory.end()
        print("TRL", {stage: round(value, 3) for stage, value in step.items()}, flush=True)

    def timed(self, stage: str, work: Callable[..., object]) -> Callable[..., object]:
        """Return `work` with its seconds added to a stage of the current step."""

        def call(*arguments, **settings):
            start = time.perf_counter()
            result = work(*arguments, **settings)
            torch.cuda.synchronize()
            self.steps[-1][stage] = self.steps[-1].get(stage, 0.0) + time.perf_counter() - start
            return result

        return call


class VLLMEngines:
    """vLLM engines of TRL's trainers: a trainer with the same arguments as an earlier one of the process takes over its
    engine. TRL loads the weights of its own model into it in every step."""

    def __init__(self) -> None:
        self._engines: list[tuple[dict[str, object], object]] = []
        self._bytes = 0
        self.reused_gib = 0.0
        """GiB of the engine that a trainer has taken over. They are not part of the trainer's own memory."""

    def open(self, **arguments: object) -> object:
        from vllm import LLM

        for known, engine in self._engines:
            if known == arguments:
                self.reused_gib = self._bytes / 2**30
                return engine
        before = torch.cuda.memory_allocated()
        self._engines.append((arguments, LLM(**arguments)))
        self._bytes = torch.cuda.memory_allocated() - before
        return self._engines[-1][1]

    @property
    def arguments(self) -> dict[str, object]:
        return self._engines[0][0]


def train_beside(
    after_step: Callable[[dict[str, float]], None],
    job: jobs.Job,
    num_steps: int,
    micro_rows: int = MICRO_ROWS,
    warm_up_tokens: int | None = None,
    folder: Path | None = None,
    engines: VLLMEngines | None = None,
    changed: dict[str, object] | None = None,
    alone: bool = False,
    **options: object,
) -> list[dict[str, float]]:
    """Run TRL's own training loop; call `after_step` after each step. Returns seconds by stage and memory per step.

    `sample` is everything up to the advantages, of which `sync` and `generate` are parts; `step` is the whole step. The
    first step is a warm-up, of shorter rows if `warm_up_tokens` is given. vLLM reads the model from `folder`.
    `changed` receives the options that differ from TRL's defaults. `alone`: no other contender is in the process."""
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    timer = StageTimer(alone=alone)

    def lengths() -> list[int]:
        is_short = warm_up_tokens is not None and len(timer.steps) == 1
        return [min(length, warm_up_tokens) for length in job.lengths] if is_short else job.lengths

    class Turns(TrainerCallback):
        def on_step_begin(self, *arguments, **state):
            timer.begin_step()

        def on_step_end(self, *arguments, **state):
            timer.end_step()
            after_step(timer.steps[-1])

    class TimedTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            completions = timer.timed("sample", super()._generate_and_score_completions)(inputs)
            timer.steps[-1]["tokens"] = float(completions["completion_mask"].sum())
            return completions

    model = jobs.make_model(job)
    generate = timer.timed("generate", model.generate)
    model.generate = lambda *arguments, **settings: generate(
        *arguments, logits_processor=LogitsProcessorList([EndAt(job, lengths())]), **settings
    )
    one_engine = nullcontext()
    if "use_vllm" in options:
        jobs.save_with_weights(job, model, folder)
        model.name_or_path = str(folder)
        one_engine = patch("trl.generation.vllm_generation.LLM", (engines or VLLMEngines()).open)
    with TemporaryDirectory() as output, one_engine:
        given = {
            "per_device_train_batch_size": micro_rows,
            "gradient_accumulation_steps": job.rows // micro_rows,
            "generation_batch_size": job.rows,
            "num_generations": job.group,
            "max_completion_length": job.longest,
            "beta": 0.0,
            "optim": "adamw_torch_fused",
            "learning_rate": 1e-6,
            "lr_scheduler_type": "constant",
            "gradient_checkpointing": False,
            "bf16": True,
            "report_to": "none",
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            **options,
        }
        if changed is not None:
            changed.update(_changed(given, GRPOConfig))
        trainer = TimedTrainer(
            model=model,
            reward_funcs=lambda completions, **columns: [_words.reward(text) for text in completions],
            args=GRPOConfig(output_dir=output, max_steps=num_steps, **given),
            # With a given fingerprint: to compute one, datasets pickles the table, and some pyarrow versions cannot.
            train_dataset=Dataset(InMemoryTable.from_pydict({"prompt": job.texts()}), fingerprint="job"),
            processing_class=job.make_tokenizer(),
            callbacks=[Turns()],
        )
        if "use_vllm" in options:
            _time_vllm(trainer.vllm_generation, timer, lengths)
        trainer.train()
    return timer.steps


def _time_vllm(generation: object, timer: StageTimer, lengths: Callable[[], list[int]]) -> None:
    """Time TRL's calls of vLLM, and give each row its length."""

    class Engine:
        """TRL's engine, with a given length for each row."""

        def __init__(self, engine: object) -> None:
            self._engine = engine

        def __getattr__(self, name: str) -> object:
            return getattr(self._engine, name)

        def generate(self, prompts, sampling_params, **settings):
            return self._engine.generate(prompts, vllm_peer.settings_by_row(sampling_params, lengths()), **settings)

    generation.llm = Engine(generation.llm)
    generation.sync_weights = timer.timed("sync", generation.sync_weights)
    generation.generate = timer.timed("generate", generation.generate)


def _changed(given: dict[str, object], config: type) -> dict[str, object]:
    """Return the given options that differ from the defaults of a configuration class."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    return {name: value for name, value in given.items() if value != defaults[name]}
