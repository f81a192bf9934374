"""The commands whose writes are recorded, on models so small that a restart takes less than a second.

To add a workload, add a row to `WORKLOADS`.
"""

import json
import os
import random
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.server import command

REPOSITORY = Path(__file__).parents[2]
TRAINING = """
name: tiny
steps: 3
model: {{path: {inputs}/model, device: cpu}}
task: {{name: "tests.local.run_tasks:Sparse"}}
rollout: {{prompts: 2, n: 2, max_response_tokens: 4}}
algorithm: {{estimator: egpo, egpo: {{entropy_mode: response}}}}
update: {{lr: 1e-3, micro_tokens: 256}}
checkpoints: {{every: 1, keep_last: 1, keep_best: 1}}
validation: {{every: 2, problems: 2}}
watch: {{rollouts_every: 2}}
"""
FINE_TUNING = """
name: tuned
model: {{path: {inputs}/model, device: cpu}}
data: {{path: {inputs}/chats.jsonl}}
epochs: 1
update: {{batch_tokens: 64, lr: 1e-3}}
checkpoints: {{every: 1, keep_last: 1, keep_best: 0}}
"""
EXPERIMENT = """
name: whole
steps: 2
model: {{path: {inputs}/model, device: cpu}}
task: {{name: countdown, settings: {{mode: binary, max_numbers: 3, max_number: 12, train: 4, test: 2,
       prompt_format: "{{target}} {{numbers}}"}}}}
cold_start: {{problems: 2, lr: 1e-3, thinking: false}}
rollout: {{prompts: 1, n: 2, max_response_tokens: 4}}
update: {{lr: 1e-3}}
checkpoints: {{every: 1, keep_last: 1, keep_best: 0}}
validation: {{every: 2, problems: 1}}
probe: {{problems: 1, n: 2}}
eval: {{n: 1}}
"""
KERNELS = "from egpo.native import library; print(library.why_no_kernels()); print(library.library_file())"


@dataclass(frozen=True)
class Workload:
    """A command, and what it promises.

    `start` writes the files that are there before. `resume` is added to the command where that file is there; `forced`
    where the command says so itself. `volatile` are names of files with times or process ids.
    """

    words: Callable[[Path], list[str]]
    start: Callable[[Path, Path], None] = lambda root, inputs: None
    resume: tuple[str, tuple[str, ...]] | None = None
    volatile: frozenset[str] = frozenset()
    takes_away: str = "$^"
    """Pattern of the paths that the command is told to remove or to shorten."""
    env: Mapping[str, str] = field(default_factory=dict)

    def again(self, root, inputs):
        """The command that continues after a crash."""
        words = self.words(inputs)
        if self.resume and (root / self.resume[0]).exists():
            return [*words, *self.resume[1]]
        return words


def _recipe(text):
    return lambda root, inputs: (root / "recipe.yaml").write_text(text.format(inputs=inputs)) and None


def _rewound(root, inputs):
    """A run of three steps whose every checkpoint is there, to be continued from the first."""
    text = TRAINING.replace("keep_last: 1", "keep_last: 5")
    (root / "recipe.yaml").write_text(text.format(inputs=inputs))
    _egpo("train", "recipe.yaml", cwd=root, inputs=inputs)


def _old_data(root, inputs):
    _egpo("prepare", "countdown", "--out", "out", "--train", "3", "--test", "2", "--seed", "7", cwd=root, inputs=inputs)


def _old_model(root, inputs):
    _egpo("merge", inputs / "runs" / "tiny", "--out", "out", cwd=root, inputs=inputs)
    (root / "out" / "note.txt").write_text("of an earlier merge\n")


_PREPARE = ["prepare", "countdown", "--out", "out", "--train", "6", "--test", "3"]
_RUN_FILES = frozenset({"timings.jsonl", "provenance.json", "config.yaml", ".lock"})
WORKLOADS = {
    "train": Workload(
        lambda inputs: ["train", "recipe.yaml"],
        _recipe(TRAINING),
        ("runs/tiny/config.yaml", ("--resume",)),
        _RUN_FILES,
    ),
    "train --resume-from": Workload(
        lambda inputs: ["train", "recipe.yaml", "--resume-from", "1"],
        _rewound,
        None,
        _RUN_FILES,
        r"global_step_[23]/|step_[23]\.jsonl|metrics\.jsonl|health\.jsonl|latest_checkpointed",
    ),
    "sft": Workload(
        lambda inputs: ["sft", "recipe.yaml"],
        _recipe(FINE_TUNING),
        ("runs/tuned/config.yaml", ("--resume",)),
        _RUN_FILES,
    ),
    "run": Workload(
        lambda inputs: ["run", "recipe.yaml"],
        _recipe(EXPERIMENT),
        None,
        _RUN_FILES | {"stages.json", "report.html", ".lock-stages"},
    ),
    "prepare": Workload(lambda inputs: list(_PREPARE)),
    "prepare --force": Workload(lambda inputs: [*_PREPARE, "--force"], _old_data),
    "convert": Workload(lambda inputs: ["convert", "hardgen", f"{inputs}/raw.jsonl", "--out", "out"]),
    "merge": Workload(lambda inputs: ["merge", f"{inputs}/runs/tiny", "--out", "out"]),
    "merge over a model": Workload(lambda inputs: ["merge", f"{inputs}/runs/tiny", "--out", "out"], _old_model),
    "eval": Workload(
        lambda inputs: [
            *("eval", f"{inputs}/model", "--task", "tests.evals.sum_task:Sums", "--set", "count=2"),
            *("--n", "2", "--max-tokens", "4", "--out", "out"),
        ]
    ),
    "kernels": Workload(lambda inputs: ["python", KERNELS], env={"XDG_CACHE_HOME": "cache"}),
    "gguf": Workload(
        lambda inputs: [
            *("eval", f"{inputs}/small.gguf", "--task", "tests.evals.sum_task:Sums", "--set", "count=1"),
            *("--n", "1", "--max-tokens", "2", "--out", "out"),
        ],
        env={"XDG_CACHE_HOME": "cache", "EGPO_NATIVE": "0"},
    ),
}


def environment(inputs, workload=None, root=None):
    """The environment of a command. A cache below the recorded folder is given as a relative path."""
    env = {
        "OMP_NUM_THREADS": "1",
        "CI": "1",
        "COLUMNS": "200",
        "PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}",
        "TMPDIR": f"{inputs}/tmp",
    }
    for name, value in (workload.env if workload else {}).items():
        env[name] = f"{root}/{value}" if name == "XDG_CACHE_HOME" else value
    return env


def make_inputs(inputs):
    """Write what the commands read: a model, a GGUF file, conversations, and a finished run."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from egpo.tasks.function_calling import draw_conversation
    from tests.local.conftest import CONFIGS, build_tokenizer
    from tests.model_sources.gguf_files import write_model

    (inputs / "tmp").mkdir(parents=True)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen3Config(**{**CONFIGS["qwen3"].to_dict(), **sizes, "num_key_value_heads": 1, "layer_types": None})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(inputs / "model")
    build_tokenizer().save_pretrained(inputs / "model")
    write_model(inputs / "small.gguf")
    rng = random.Random(0)
    (inputs / "raw.jsonl").write_text("".join(json.dumps(draw_conversation(rng)) + "\n" for _ in range(12)))
    chats = [
        {"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": str(i)}]}
        for i in range(4)
    ]
    (inputs / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    (inputs / "recipe.yaml").write_text(TRAINING.format(inputs=inputs))
    _egpo("train", "recipe.yaml", cwd=inputs, inputs=inputs)


def _egpo(*words, cwd, inputs):
    done = subprocess.run(
        command([str(word) for word in words]),
        cwd=cwd,
        env={**os.environ, **environment(inputs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
