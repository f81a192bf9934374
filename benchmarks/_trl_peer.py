"""TRL's GRPOTrainer on a job of benchmarks/embedded_cpu.py, with its fastest options.

All responses are generated at once and have one fixed length; float32; no gradient checkpointing, reference model,
logging or saving; AdamW has the same settings as ours. Micro-batches have 32 rows: the fastest of 8, 16, 32, 64 and 128
for the job of embedded_cpu.py. With a static cache, `generate` compiles for minutes and is not faster afterwards.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import _words
from _embedded_job import Job
from _process_memory import PeakMemory

FOLDER = Path(__file__).resolve().parents[1] / ".env-trl"
MICRO_ROWS = 32


def is_installed() -> bool:
    return (FOLDER / "trl").is_dir()


def train_beside(
    others: Callable[[], None], job: Job, num_steps: int, micro_rows: int = MICRO_ROWS
) -> list[dict[str, float]]:
    """Run TRL's own training loop; call `others` after each step. Returns seconds by stage for every step.

    `sample` is everything up to the advantages, `step` the whole step. The first step is a warm-up; the last one
    measures memory."""
    # After .venv's own packages on the path: only missing packages are taken from here.
    sys.path.append(str(FOLDER))
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    steps: list[dict[str, float]] = []

    class Turns(TrainerCallback):
        memory = None

        def on_step_begin(self, *arguments, **state):
            self.memory = PeakMemory() if len(steps) == num_steps - 1 else None
            steps.append({"begin": time.perf_counter()})

        def on_step_end(self, *arguments, **state):
            steps[-1]["step"] = time.perf_counter() - steps[-1].pop("begin")
            steps[-1]["update"] = steps[-1]["step"] - steps[-1]["sample"]
            if self.memory is not None:
                steps[-1] |= self.memory.taken()
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
            gradient_accumulation_steps=job.rows // micro_rows,
            generation_batch_size=job.rows,
            num_generations=job.group,
            max_completion_length=job.new_tokens,
            generation_kwargs={"min_new_tokens": job.new_tokens},
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
            reward_funcs=lambda completions, **columns: [_words.reward(text) for text in completions],
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": job.texts()}),
            processing_class=job.make_tokenizer(),
            callbacks=[Turns()],
        )
        trainer.train()
    return steps
