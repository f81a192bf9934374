"""Makes tests/verl/recorded/updates: two steps each of real runs of verl on the CPU, with what verl logged.

    .env-verl/bin/python -m tests.verl.record_updates [NAME ...]

A run takes two minutes. Its folder then has a record of each step and `logged.json`, verl's figures of both.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.verl.live import run_verl, write_data
from tests.verl.updates import NAMES
from tests.verl.verl_worker import BFLOAT16

FOLDER = Path(__file__).with_name("recorded") / "updates"
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
COUNTDOWN = {
    "mode": "binary",
    "max_numbers": 3,
    "max_number": 12,
    "max_target": 60,
    "prompt_format": "Make {target} from {numbers}.",
}
"""Problems of which egpo-tiny solves some: short prompts, and groups whose rewards differ."""
KL = {f"{_ACTOR}.use_kl_loss": True, f"{_ACTOR}.kl_loss_coef": 0.1}
RUNS = {
    "grpo": {"algorithm.adv_estimator": "grpo", f"{_ACTOR}.clip_ratio_c": 10.0},
    # Our form of GRPO, which the plug-in computes if rewards are drawn.
    "grpo_drawn": {
        "algorithm.adv_estimator": "grpo",
        "+algorithm.egpo.random_rewards": 0.5,
        f"{_ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
        f"{_ACTOR}.loss_scale_factor": 112,
        f"{_ACTOR}.entropy_coeff": 0.01,
        f"{_ACTOR}.kl_loss_type": "mse",
        **KL,
    },
    # Mini-batches of 12 responses, up to a multiple of which verl pads the 16.
    "egpo": {
        "algorithm.adv_estimator": "egpo",
        "+algorithm.egpo.entropy_mode": "response",
        f"{_ROLLOUT}.temperature": 0.8,
        f"{_ACTOR}.ppo_mini_batch_size": 3,
        f"{_ACTOR}.ppo_epochs": 2,
    },
    "egpo_calibrated": {
        "algorithm.adv_estimator": "egpo_calibrated",
        f"{_ACTOR}.loss_agg_mode": "seq-mean-token-mean",
        f"{_ACTOR}.kl_loss_type": "low_var_kl",
        **KL,
    },
    "egpo_bfloat16": {"algorithm.adv_estimator": "egpo", f"{_ROLLOUT}.dtype": "bfloat16", **BFLOAT16},
}


def record(name: str, root: Path) -> None:
    given = {"trainer.v1.trainer_mode": "egpo_sync", f"{_ACTOR}.optim.lr": 1e-4, **RUNS[name]}
    place = root / name
    run = run_verl(
        place,
        data=write_data(place / "data", "countdown", **COUNTDOWN),
        steps=2,
        limit_s=3600,
        more=[f"{key}={value}" for key, value in given.items()] + [f"+algorithm.egpo.record={place / 'record'}"],
    )
    assert run.exit_code == 0, run.log[-4000:]
    out = FOLDER / name
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(place / "record", out)
    logged = [{name: line[name] for name in sorted(line) if name in NAMES} for line in run.metrics]
    (out / "logged.json").write_text(json.dumps(logged, indent=1) + "\n")


def main() -> None:
    for name in sys.argv[1:] or RUNS:
        with tempfile.TemporaryDirectory() as root:
            record(name, Path(root))


if __name__ == "__main__":
    main()
