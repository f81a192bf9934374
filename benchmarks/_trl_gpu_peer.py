"""TRL's GRPOTrainer on a job of benchmarks/one_gpu.py, with its fastest options.

All responses are generated at once; weights and arithmetic are bfloat16; there is no gradient checkpointing, reference
model, logging or saving; AdamW has the same settings as ours. A logits processor ends every response at its length.
"""

import time
from collections.abc import Callable
from importlib.util import find_spec
from tempfile import TemporaryDirectory

import torch
from transformers import LogitsProcessor, LogitsProcessorList

import _gpu_job as jobs
import _words

MICRO_ROWS = 32


def is_installed() -> bool:
    return find_spec("trl") is not None


class EndAt(LogitsProcessor):
    """Logits processor that allows the end token exactly where a row has its length."""

    def __init__(self, job: jobs.Job) -> None:
        self._length_B = torch.tensor(job.lengths, device="cuda")
        self._prompt_tokens, self._end = job.prompt_tokens, job.end

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ends_B = self._length_B == input_ids.shape[1] - self._prompt_tokens + 1
        scores[:, self._end] = torch.where(ends_B, 1e4, -torch.inf).to(scores.dtype)
        return scores


WAYS: dict[str, dict[str, object]] = {
    "generate": {},
    "continuous": {"use_transformers_continuous_batching": True},
    "vllm": {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3},
}
"""How TRL may generate. Only with `generate` rows end where they are told to: the others are for equal lengths."""


def train_beside(
    others: Callable[[], None], job: jobs.Job, num_steps: int, micro_rows: int = MICRO_ROWS, **options: object
) -> list[dict[str, float]]:
    """Run TRL's own training loop; call `others` after each step. Returns seconds by stage and peak memory per step.

    `sample` is everything up to the advantages, `step` the whole step. The first step is a warm-up."""
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    steps: list[dict[str, float]] = []

    class Turns(TrainerCallback):
        def on_step_begin(self, *arguments, **state):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            steps.append({"begin": time.perf_counter()})

        def on_step_end(self, *arguments, **state):
            torch.cuda.synchronize()
            steps[-1]["step"] = time.perf_counter() - steps[-1].pop("begin")
            steps[-1]["gib"] = torch.cuda.max_memory_allocated() / 2**30
            print("TRL", {stage: round(value, 3) for stage, value in steps[-1].items()}, flush=True)
            others()

    class TimedTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            start = time.perf_counter()
            completions = super()._generate_and_score_completions(inputs)
            torch.cuda.synchronize()
            steps[-1]["sample"] = time.perf_counter() - start
            steps[-1]["tokens"] = float(completions["completion_mask"].sum())
            return completions

    model = jobs.make_model(job)
    generate = model.generate
    model.generate = lambda *arguments, **settings: generate(
        *arguments, logits_processor=LogitsProcessorList([EndAt(job)]), **settings
    )
    with TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            max_steps=num_steps,
            per_device_train_batch_size=micro_rows,
            gradient_accumulation_steps=job.rows // micro_rows,
            generation_batch_size=job.rows,
            num_generations=job.group,
            max_completion_length=job.longest,
            beta=0.0,
            optim="adamw_torch_fused",
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            gradient_checkpointing=False,
            bf16=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            **options,
        )
        trainer = TimedTrainer(
            model=model,
            reward_funcs=lambda completions, **columns: [_words.reward(text) for text in completions],
            args=settings,
            # With a given fingerprint: to compute one, datasets pickles the table, and some pyarrow versions cannot.
            train_dataset=Dataset(InMemoryTable.from_pydict({"prompt": job.texts()}), fingerprint="job"),
            processing_class=job.make_tokenizer(),
            callbacks=[Turns()],
        )
        trainer.train()
    return steps
