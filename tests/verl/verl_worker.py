"""verl's own training worker in one process: FSDP2 on one rank, without Ray, vLLM and TransferQueue.

    python -m tests.verl.verl_worker FOLDER cpu|cuda

reads FOLDER/cases.json (for each case by its name, the settings that differ, and the paths of recorded batches), and
writes FOLDER/<name>.pt: what `run` returns. It is a process of its own, because verl reads the platform from the
environment. On a GPU it is verl as it is, on a CPU with the patches of `egpo.verl.cpu`. B responses, T tokens.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from egpo.assets import resolve_model
from egpo.verl.cpu.launch_settings import ENVIRONMENT, OVERRIDES
from egpo.verl.dumps import Recorded, read_record, settings_of_update

_ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
SMALL = {
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": 4,
    f"{_REF}.log_prob_micro_batch_size_per_gpu": 4,
    f"{_ROLLOUT}.n": 4,
    f"{_ACTOR}.ppo_mini_batch_size": 4,
    "data.train_batch_size": 4,
    "trainer.n_gpus_per_node": 1,
}
MOMENTS = ("exp_avg", "exp_avg_sq")
Device = Literal["cpu", "cuda"]
ENVIRONMENTS: dict[Device, dict[str, str]] = {
    "cpu": ENVIRONMENT,
    "cuda": {"VERL_PLATFORM": "nvidia", "TOKENIZERS_PARALLELISM": "false", "TORCH_COMPILE_DISABLE": "1"},
}
LIMIT_S = 900
BFLOAT16 = {f"{part}.fsdp_config.mixed_precision.param_dtype": "bf16" for part in (_ACTOR, _REF)}


def run_cases(
    folder: Path, cases: Mapping[str, tuple[Mapping[str, Any], list[Path]]], device: Device = "cpu"
) -> dict[str, dict[str, Any]]:
    """What verl computed in each case: settings that differ from the small ones above, and a batch for each step."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {
        name: [dict(settings), [str(path.absolute()) for path in paths]] for name, (settings, paths) in cases.items()
    }
    (folder / "cases.json").write_text(json.dumps(plain))
    command, here = [sys.executable, "-m", __name__, str(folder), device], Path(__file__).parents[2]
    environment, output = os.environ | ENVIRONMENTS[device], folder / "output.txt"
    with output.open("w") as stream:
        done = subprocess.run(
            command, env=environment, cwd=here, stdout=stream, stderr=stream, check=False, timeout=LIMIT_S
        )
    assert done.returncode == 0, output.read_text()[-4000:]
    return {name: torch.load(folder / f"{name}.pt", weights_only=True) for name in cases}


def run(settings: Mapping[str, Any], records: list[Recorded], device: Device) -> dict[str, Any]:
    """Take a step with each batch. `steps`: of each, old and reference log-probabilities, metrics, and what the weights
    and the moments of AdamW were after it. `matmul_error`: see there."""
    from verl.workers.engine_workers import ActorRolloutRefWorker

    config = config_of({**settings, "trainer.device": device})
    section, uses_reference = config.actor_rollout_ref, config.actor_rollout_ref.actor.use_kl_loss
    reference = ActorRolloutRefWorker(section, role="ref") if uses_reference else None
    worker = ActorRolloutRefWorker(section, role="actor")
    for one in filter(None, (reference, worker)):
        one.init_model()
    steps = [_step(worker, reference, section, recorded) for recorded in records]
    return {"steps": steps, "settings": _plain(config), "matmul_error": matmul_error(device)}


def matmul_error(device: str) -> float:
    """Return the error of a product in float32, relative to its size: about 3e-7, and in TF32 about 3e-4."""
    one, other = torch.randn(2, 512, 512, generator=torch.Generator().manual_seed(0)).to(device)
    exact = one.double() @ other.double()
    return float(((one @ other).double() - exact).norm() / exact.norm())


def config_of(settings: Mapping[str, Any]) -> Any:
    """Return verl's configuration with the settings that a CPU needs, the small ones above, and these."""
    from hydra import compose, initialize_config_module

    values = {**OVERRIDES, **SMALL, "actor_rollout_ref.model.path": resolve_model("egpo-tiny"), **settings}
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"{key}={value}" for key, value in values.items()])


def _plain(config: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    return settings_of_update(OmegaConf.to_container(config, resolve=True))


def _step(worker: Any, reference: Any, section: Any, recorded: Recorded) -> dict[str, Any]:
    """As `_step_once` of verl's trainer: old and reference log-probabilities, then the update."""
    from verl.utils import tensordict_utils as tu

    batch = _batch_of(recorded)
    batch["old_log_probs"] = logp_of(worker.compute_log_prob, batch, section)
    if reference is not None:
        batch["ref_log_prob"] = logp_of(reference.compute_ref_log_prob, batch, section)
    metrics = tu.get(update(worker, batch, section), "metrics")
    means = {name.removeprefix("actor/"): sum(map(float, values)) / len(values) for name, values in metrics.items()}
    found = {"metrics": {f"actor/{name}": value for name, value in means.items()}, **_state_of(worker.actor.engine)}
    for ours, theirs in {"logp_BT": "old_log_probs", "reference_BT": "ref_log_prob"}.items():
        if theirs in batch:
            found[ours] = _padded(batch[theirs], recorded.mask_BT.shape[1])
    return found


def update(worker: Any, batch: Any, section: Any) -> Any:
    """Take verl's optimizer steps on a batch with old log-probabilities. Returns what its worker returns."""
    from verl.utils import tensordict_utils as tu

    actor = section.actor
    size = actor.ppo_mini_batch_size * section.rollout.n
    used = batch.clone()
    tu.assign_non_tensor(
        used, global_batch_size=size, mini_batch_size=size, epochs=actor.ppo_epochs, seed=0,
        dataloader_kwargs={"shuffle": False}, temperature=section.rollout.temperature,
        calculate_entropy=actor.calculate_entropy or actor.entropy_coeff != 0,
    )  # fmt: skip
    return worker.update_actor(used)


def logp_of(compute: Any, batch: Any, section: Any) -> Any:
    """Return the log-probabilities that a worker computes for the responses of a batch, jagged."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import response_from_nested

    asked = batch.clone()
    tu.assign_non_tensor(asked, calculate_entropy=False, compute_loss=False, temperature=section.rollout.temperature)
    return response_from_nested(compute(asked)["log_probs"], batch["response_mask"])


def _batch_of(recorded: Recorded) -> Any:
    """A recorded batch as verl keeps it: without padding."""
    rows: list[dict[str, torch.Tensor]] = []
    for row, mask_T in enumerate(recorded.mask_BT):
        # An episode that could not start has one token, which is not trained on.
        end = int(mask_T.nonzero()[0].max()) + 1 if mask_T.any() else 1
        prompt = torch.from_numpy(recorded.prompt_BS[row][recorded.prompt_mask_BS[row]])
        response, mask = torch.from_numpy(recorded.response_BT[row, :end]), torch.from_numpy(mask_T[:end]).long()
        advantage = torch.from_numpy(recorded.advantage_BT[row, :end]).float()
        tokens = torch.cat([prompt, response])
        rows.append({"prompts": prompt, "responses": response, "input_ids": tokens, "advantages": advantage,
                     "position_ids": torch.arange(len(tokens)), "response_mask": mask, "loss_mask": mask})  # fmt: skip
    return jagged_batch(rows)


def jagged_batch(rows: list[dict[str, torch.Tensor]]) -> Any:
    """Return a batch of responses as verl keeps it, of one tensor per row and name."""
    from tensordict import TensorDict

    tables = {name: [row[name] for row in rows] for name in rows[0]}
    jagged = {name: torch.nested.as_nested_tensor(table, layout=torch.jagged) for name, table in tables.items()}
    return TensorDict(jagged, batch_size=len(rows))


def _padded(jagged: torch.Tensor, length: int) -> torch.Tensor:
    value_BT = jagged.to_padded_tensor(0.0)
    return torch.nn.functional.pad(value_BT, (0, length - value_BT.shape[1])).float()


def _state_of(engine: Any) -> dict[str, dict[str, torch.Tensor]]:
    """Weights and moments by the parameters' names."""
    named, state = dict(engine.module.named_parameters()), engine.optimizer.state
    found = {key: {name: _whole(state[weight][key]) for name, weight in named.items()} for key in MOMENTS}
    return {"weights": {name: _whole(weight) for name, weight in named.items()}, **found}


def _whole(tensor: Any) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().cpu().clone()


def begin_process(device: str) -> None:
    """Let this process be the only rank of verl's workers."""
    if device == "cpu":
        torch.set_num_threads(1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(port)


def main() -> None:
    folder, device = Path(sys.argv[1]), sys.argv[2]
    begin_process(device)
    for name, (settings, paths) in json.loads((folder / "cases.json").read_text()).items():
        torch.save(run(settings, [read_record(Path(path)) for path in paths], device), folder / f"{name}.pt")


if __name__ == "__main__":
    main()
