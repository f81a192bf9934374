"""TRL's GRPOTrainer on the job of benchmarks/embedded_cpu.py, set up as fast as its options allow.

All 128 responses are generated at once and have exactly 96 tokens; float32; no gradient checkpointing, reference,
logging or saving; AdamW as ours. One optimizer step takes four micro-batches of 32 rows: of 8, 16, 32, 64 and 128 that
is the fastest here. With a static cache `generate` compiles, for minutes, and is no faster after it.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import _embedded_job as job

FOLDER = Path(__file__).resolve().parents[1] / ".env-trl"
MICRO_ROWS = 32


def is_installed() -> bool:
    return (FOLDER / "trl").is_dir()


def train_beside(others: Callable[[], None], num_steps: int, micro_rows: int = MICRO_ROWS) -> list[dict[str, float]]:
    """TRL's own training loop, `others` called after each of its steps: seconds by stage for every step.

    `sample` is everything up to the advantages, `step` the whole; the first step is a warm-up like any other's."""
    # Behind .venv's own packages: only what is missing there comes from here.
    sys.path.append(str(FOLDER))
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    steps: list[dict[str, float]] = []

    class Turns(TrainerCallback):
        def on_step_begin(self, *arguments, **state):
            steps.append({"begin": time.perf_counter()})

        def on_step_end(self, *arguments, **state):
            steps[-1]["step"] = time.perf_counter() - steps[-1].pop("begin")
            others()

    class TimedTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            start = time.perf_counter()
            completions = super()._generate_and_score_completions(inputs)
            steps[-1]["sample"] = time.perf_counter() - start
            return completions

    with TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            max_steps=num_steps,
            per_device_train_batch_size=micro_rows,
            gradient_accumulation_steps=job.ROWS // micro_rows,
            generation_batch_size=job.ROWS,
            num_generations=job.GROUP,
            max_completion_length=job.NEW_TOKENS,
            generation_kwargs={"min_new_tokens": job.NEW_TOKENS},
            beta=0.0,
            optim="adamw_torch_fused",
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            dataloader_pin_memory=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = TimedTrainer(
            model=job.make_model(),
            reward_funcs=lambda completions, **columns: [job.reward(text) for text in completions],
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": job.prompts()}),
            processing_class=job.make_tokenizer(),
            callbacks=[Turns()],
        )
        trainer.train()
    return steps
