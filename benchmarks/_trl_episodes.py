"""TRL's GRPOTrainer with `environment_factory` on the job of benchmarks/episodes.py, with its fastest options.

All rows are generated at once; no gradient checkpointing, reference model, logging or saving; AdamW has the same
settings as ours. On a CPU everything is float32, on a GPU bfloat16.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).resolve().parents[1] / ".env-trl"
# After .venv's own packages on the path: only missing packages are taken from there. Before transformers is imported,
# which looks for jmespath only once.
sys.path.append(str(FOLDER))

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from _toolbox_world import ToolboxWorld  # noqa: E402
from egpo.tasks import Problem  # noqa: E402

MICRO_ROWS = 32
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `environment_factory` warns that it may change


class AlternatingWorld(ToolboxWorld):
    """The same environment with the rewards 0 and 1 in turn. TRL makes one instance for each row, in order."""

    num_made = 0

    def __init__(self) -> None:
        self._reward = float(AlternatingWorld.num_made % 2)
        AlternatingWorld.num_made += 1

    def get_reward(self) -> float:
        super().get_reward()
        return self._reward


def missing() -> str:
    """Return which packages of TRL are missing; empty if it can run."""
    return ", ".join(name for name in ("trl", "accelerate", "datasets", "jmespath") if find_spec(name) is None)


def train_beside(
    others: Callable[[], None],
    model_folder: Path,
    problems: Sequence[Problem],
    group: int,
    max_tokens: int,
    max_turns: int,
    num_steps: int,
    device: str,
) -> list[dict[str, float]]:
    """Run TRL's own training loop; call `others` after each step. Returns seconds by stage and tokens for every step.

    `sample` is everything up to the advantages, `step` the whole step; `tokens` are all tokens after the prompts. The
    first step is a warm-up."""
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer, chat_template_utils

    steps: list[dict[str, float]] = []

    def settle() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    class Turns(TrainerCallback):
        def on_step_begin(self, *arguments, **state):
            settle()
            steps.append({"begin": time.perf_counter()})

        def on_step_end(self, *arguments, **state):
            settle()
            steps[-1]["step"] = time.perf_counter() - steps[-1].pop("begin")
            steps[-1]["update"] = steps[-1]["step"] - steps[-1]["sample"]
            others()

    class TimedTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            start = time.perf_counter()
            completions = super()._generate_and_score_completions(inputs)
            settle()
            steps[-1]["sample"] = time.perf_counter() - start
            steps[-1]["tokens"] = float(completions["completion_mask"].sum())
            steps[-1]["turns"] = _turns(completions["tool_mask"] * completions["completion_mask"])
            return completions

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    # TRL knows how to read calls only in templates that it ships; ours writes them as Qwen3's does.
    tokenizer.response_schema = chat_template_utils.qwen3_schema
    if chat_template_utils._SUPPORTS_RESPONSE_TEMPLATE:
        tokenizer.response_schema, tokenizer.response_template = None, chat_template_utils.qwen3_template
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rows = len(problems) * group
    columns = {
        "prompt": [[dict(message) for message in problem.messages] for problem in problems],
        "world": [str(problem.extra["world"]) for problem in problems],
    }
    with TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            max_steps=num_steps,
            per_device_train_batch_size=min(MICRO_ROWS, rows),
            gradient_accumulation_steps=max(1, rows // MICRO_ROWS),
            generation_batch_size=rows,
            num_generations=group,
            max_completion_length=max_tokens,
            max_tool_calling_iterations=max_turns - 1,
            beta=0.0,
            optim="adamw_torch_fused",
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            gradient_checkpointing=False,
            bf16=device == "cuda",
            use_cpu=device == "cpu",
            dataloader_pin_memory=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = TimedTrainer(
            model=AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype),
            args=settings,
            # With a given fingerprint: to compute one, datasets pickles the table, and some pyarrow versions cannot.
            train_dataset=Dataset(InMemoryTable.from_pydict(columns), fingerprint="episodes"),
            processing_class=tokenizer,
            callbacks=[Turns()],
            environment_factory=AlternatingWorld,
        )
        trainer.train()
    return steps


def _turns(sampled_BT: torch.Tensor) -> float:
    """Return the mean number of turns: runs of sampled tokens."""
    begins_BT = torch.diff(sampled_BT.int(), prepend=torch.zeros_like(sampled_BT[:, :1]).int(), dim=1) == 1
    return float(begins_BT.sum(dim=1).float().mean())
