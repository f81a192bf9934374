"""Checkpoints as verl writes them, by FSDP2 itself: real processes on gloo, without verl."""

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer

from egpo.assets import MODELS

TINY = MODELS["egpo-tiny"]


@dataclass(frozen=True)
class Sharding:
    """`replicas` copies of the model, each over `num_shards` ranks. `lora` as in peft."""

    num_shards: int
    replicas: int = 1
    lora: dict | None = None
    lora_only: bool = False
    model: Path = TINY
    dtype: torch.dtype = torch.float32

    @property
    def world_size(self):
        return self.num_shards * self.replicas


def trained_model(sharding):
    """The base with every weight moved, as by a training; the same in every process."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(sharding.model, dtype=sharding.dtype)
    if sharding.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **sharding.lora))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.01)
    return model


def save_sharded(actor, sharding):
    """Writes the actor folder of a checkpoint, every rank its own shard."""
    actor.mkdir(parents=True)
    with TemporaryDirectory() as folder:
        meeting = f"file://{folder}/ranks"
        processes.start_processes(
            _save, (str(actor), sharding, meeting), nprocs=sharding.world_size, start_method="fork"
        )


def _save(rank, actor, sharding, meeting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=sharding.world_size)
    model = trained_model(sharding)
    layers = (model.base_model.model if sharding.lora else model).model.layers
    for module in (*layers, model):
        fully_shard(module, mesh=_mesh(sharding))
    state = model.state_dict()
    if sharding.lora_only:
        state = {name: tensor for name, tensor in state.items() if "lora_" in name}
    torch.save(state, Path(actor) / f"model_world_size_{sharding.world_size}_rank_{rank}.pt")
    if rank == 0:
        _describe(Path(actor), model, sharding)
    dist.barrier()
    dist.destroy_process_group()


def _mesh(sharding):
    if sharding.replicas == 1:
        return init_device_mesh("cpu", (sharding.num_shards,), mesh_dim_names=("fsdp",))
    return init_device_mesh("cpu", (sharding.replicas, sharding.num_shards), mesh_dim_names=("ddp", "fsdp"))


def _describe(actor, model, sharding):
    model.config.save_pretrained(actor / "huggingface")
    AutoTokenizer.from_pretrained(sharding.model).save_pretrained(actor / "huggingface")
    described = {"FSDP_version": 2, "world_size": sharding.world_size}
    (actor / "fsdp_config.json").write_text(json.dumps(described))
    if sharding.lora:
        meta = {"r": sharding.lora["r"], "lora_alpha": sharding.lora["lora_alpha"], "task_type": "CAUSAL_LM"}
        (actor / "lora_train_meta.json").write_text(json.dumps(meta))
