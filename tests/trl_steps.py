"""A few steps of TRL's trainer with egpo's estimators, in a process of its own: TRL is in a folder beside .venv.

    python -m tests.trl_steps OUT NAME        with torch.distributed.run: on several processes

OUT gets what each process saw in each step, for tests/test_trl.py: TRL's own advantages, ours, and entropies of plain
logits.
"""

import os
import sys
from functools import wraps
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / ".env-trl"
# After .venv's own packages on the path: only missing packages are taken from there.
sys.path.append(str(FOLDER))

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from egpo.assets import resolve_model  # noqa: E402
from egpo.trl import EgpoGRPOTrainer  # noqa: E402

QUESTIONS = (([2, 3, 4], 24), ([5, 4, 2], 22))
GROUP = 4
RUNS = {
    "grpo": ({"estimator": "grpo"}, {}),
    "egpo": ({"estimator": "egpo", "estimator_settings": {"lam": 0.6}}, {}),
    "token_entropy": ({"estimator": "token_entropy"}, {}),
    "calibrated_nll": (
        {
            "estimator": "egpo_calibrated",
            "estimator_settings": {"measure": "nll", "sides": "positive_only"},
            "correct_from": "is_even",
        },
        {"scale_rewards": "none"},
    ),
    "egpo_spread": ({"estimator": "egpo"}, {"num_generations": 2 * GROUP}),
    "token_entropy_spread": ({"estimator": "token_entropy"}, {"num_generations": 2 * GROUP}),
    "reused": ({"estimator": "egpo"}, {"num_iterations": 2}),
}
"""The arguments of the trainer and the settings of TRL that differ, by name."""


def by_length(completions, **columns):
    """Rewards that differ within a group; None, as a checker that failed gives, for some."""
    lengths = [len(one[0]["content"]) for one in completions]
    return [None if length % 11 == 0 else length % 7 / 3 for length in lengths]


def is_even(completions, **columns):
    lengths = [len(one[0]["content"]) for one in completions]
    return [None if length % 11 == 0 else float(length % 2 == 0) for length in lengths]


def plain_measures(trainer, batch):
    """Entropy and logp of each token of the responses from the logits of the model, in float64."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    with torch.no_grad():
        logits = trainer.accelerator.unwrap_model(trainer.model)(input_ids=ids, attention_mask=mask).logits
    start = batch["prompt_ids"].shape[1]
    logp_BTV = (logits[:, start - 1 : -1].double() / trainer.temperature).log_softmax(-1)
    picked_BT = logp_BTV.gather(-1, batch["completion_ids"][..., None])[..., 0]
    return -(logp_BTV.exp() * logp_BTV).sum(-1), picked_BT


class Passes:
    """Counts the passes of TRL's trainer, and keeps the advantages that it computed itself."""

    def __init__(self):
        self.num, self.own = 0, None
        passing, scoring = GRPOTrainer._get_per_token_logps_and_entropies, GRPOTrainer._generate_and_score_completions

        @wraps(passing)
        def counted(trainer, *inputs, **named):
            self.num += 1
            return passing(trainer, *inputs, **named)

        @wraps(scoring)
        def kept(trainer, inputs):
            batch = scoring(trainer, inputs)
            self.own = batch["advantages"].clone()
            return batch

        GRPOTrainer._get_per_token_logps_and_entropies = counted
        GRPOTrainer._generate_and_score_completions = kept


def make(name, folder, passes):
    steps = []

    class Recorded(EgpoGRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            batch, before = super()._generate_and_score_completions(inputs), passes.num
            entropy_BT, logp_BT = plain_measures(self, batch)
            kept = {key: batch[key].clone() for key in ("completion_ids", "completion_mask", "advantages")}
            rest = {"own": passes.own, "rewards": self._reward_NF, "entropy": entropy_BT, "logp": logp_BT}
            steps.append(kept | rest | {"passes_before_update": before, "losses": []})
            return batch

        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            steps[-1]["losses"].append(float(loss.detach()) * self.current_gradient_accumulation_steps)
            steps[-1]["logged"] = list(self._logs["advantages"])
            steps[-1]["metrics"] = {key: value[-1] for key, value in self._metrics["train"].items() if value}
            return loss

    ours, theirs = RUNS[name][0], dict(RUNS[name][1])
    settings = GRPOConfig(
        output_dir=folder,
        max_steps=2,
        per_device_train_batch_size=len(QUESTIONS) * GROUP // int(os.environ.get("WORLD_SIZE", "1")),
        num_generations=theirs.pop("num_generations", GROUP),
        max_completion_length=64,
        temperature=0.9,
        loss_type="dapo",
        learning_rate=1e-5,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
        **theirs,
    )
    prompts = [[{"role": "user", "content": f"Make {target} from {numbers}."}] for numbers, target in QUESTIONS]
    trainer = Recorded(
        model=str(resolve_model("egpo-tiny")),
        reward_funcs=[by_length, is_even],
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        **ours,
    )
    return trainer, steps


if __name__ == "__main__":
    out, names = Path(sys.argv[1]), sys.argv[2:]
    passes = Passes()
    for name in names:
        trainer, steps = make(name, str(out / name), passes)
        passes.num = 0
        trainer.train()
        rank = trainer.accelerator.process_index
        torch.save({"steps": steps, "passes": passes.num}, out / f"{name}.{rank}.pt")
    # A process that ends while another still waits for it would make that one fail.
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
