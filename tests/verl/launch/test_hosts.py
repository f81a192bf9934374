"""The launcher sizes verl for the machine: one GPU with few cores needs no setting by hand, a large node gets none."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.support import PACKED_ATTENTION
from egpo.verl.launch.command import command
from egpo.verl.launch.dry_run import dry_run, planned_command, planned_settings
from egpo.verl.launch.hosts import (
    ATTENTION,
    CACHE_BYTES,
    COMPILATION,
    CONTEXT,
    CPUS_PER_GPU,
    HOST_CODE,
    MEMORY_SHARE,
    RAY_CPUS,
    STARTING_SLOWLY,
    STORAGE_UNITS,
    USUAL_WORKERS,
    Host,
    largest_cache_bytes,
    look_at_host,
    memory_share,
    plain_shape,
    processes_for,
    state_bytes,
)
from egpo.verl.launch.preflight import Installed, require_devices, require_free_gpus
from egpo.verl.launch.schema.known import schema
from egpo.verl.launch.translation import Setting
from tests.verl.launch.recipes import small

GIB = 2**30
ONE_GPU = ("verl.device=cuda", "verl.gpus=1", "rollout.prompts=16")
SMALL_HOST = Host(4, flash_attention=False, memory_bytes=16 * GIB, gpu_bytes=24 * GIB)
MIDDLE_HOST = Host(16, flash_attention=False, memory_bytes=128 * GIB, gpu_bytes=139 * GIB)
LARGE_HOST = Host(96, flash_attention=True, memory_bytes=1024 * GIB, gpu_bytes=79 * GIB)

_MODEL, _ROLLOUT, _RAY = "actor_rollout_ref.model", "actor_rollout_ref.rollout", "ray_kwargs.ray_init"
BY_HAND = {
    ATTENTION,
    f"{_MODEL}.use_remove_padding",
    f"{_RAY}.include_dashboard",
    f"{_RAY}.num_cpus",
    f"{_RAY}.num_gpus",
    f"{_RAY}.object_store_memory",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    "reward.num_workers",
    f"{_ROLLOUT}.agent.num_workers",
    "data.dataloader_num_workers",
}
"""What the first run on one GPU had to be given by hand, beside two of vLLM: `max_num_seqs` at verl's
default, and `gpu_memory_utilization`, which is set where verl's default leaves the trainer too little."""


def settings(host, *overrides):
    return {one.key: one.value for one in planned_settings(small(*overrides), host=host)}


@pytest.mark.parametrize("host", [SMALL_HOST, MIDDLE_HOST])
def test_one_gpu_with_few_cores_needs_no_setting_by_hand(host):
    keys = settings(host, *ONE_GPU)
    assert set(keys) >= BY_HAND
    assert keys[ATTENTION] == PACKED_ATTENTION
    assert keys[f"{_MODEL}.use_remove_padding"] is True
    workers = (keys["reward.num_workers"], keys[f"{_ROLLOUT}.agent.num_workers"])
    assert workers == ((2, 4) if host is MIDDLE_HOST else (1, 1))
    assert keys["transfer_queue.backend.SimpleStorage.num_data_storage_units"] == 1
    assert keys[f"{_RAY}.num_cpus"] == (16 if host is MIDDLE_HOST else 8)
    assert [key for key in keys if not schema().knows(key) and not key.startswith("hydra.")] == []


def test_a_node_with_eight_gpus_and_96_cores_keeps_the_defaults_of_verl():
    chosen = ("verl.device=cuda", "verl.gpus=8", "rollout.prompts=16")
    keys, before = settings(LARGE_HOST, *chosen), settings(None, *chosen)
    assert {key: value for key, value in keys.items() if before.get(key) != value} == {
        f"{_RAY}.num_cpus": 96,
        f"{_RAY}.num_gpus": 8,
    }


@pytest.mark.parametrize("host", [SMALL_HOST, LARGE_HOST])
def test_nothing_changes_on_a_cpu(host):
    config = small()
    assert planned_settings(config, host=host) == planned_settings(config)
    assert planned_command(config, planned_settings(config), host) == planned_command(config, planned_settings(config))


def test_what_the_user_sets_wins():
    chosen = {
        f"{_RAY}.num_cpus": 3,
        "reward.num_workers": 5,
        f"{_ROLLOUT}.agent.num_workers": 6,
        f"{_ROLLOUT}.gpu_memory_utilization": 0.7,
        f"{_MODEL}.use_remove_padding": False,
    }
    keys = settings(SMALL_HOST, *ONE_GPU, *(f"verl.{key}={json.dumps(value)}" for key, value in chosen.items()))
    assert {key: keys[key] for key in chosen} == chosen


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("shape", [{"model_type": "gemma3_text"}, {"model_type": "qwen2", "use_sliding_window": True}])
def test_batches_are_padded_where_packed_attention_does_not_fit(shape, device, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(shape))
    keys = settings(SMALL_HOST, *ONE_GPU, f"verl.device={device}", f"model.path={tmp_path}")
    assert keys[ATTENTION] == "sdpa"
    assert keys[f"{_MODEL}.use_remove_padding"] is False


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_name_of_the_attention_stays_out_of_the_config_that_verl_saves(device):
    """verl writes all keys of override_config into config.json, or those of model_config if it is there."""
    parts = f"{_MODEL}.override_config"
    chosen = (*ONE_GPU, f"verl.device={device}")
    assert settings(SMALL_HOST, *chosen)[f"{parts}.model_config"] == {}
    with_another = settings(SMALL_HOST, *chosen, f"verl.{parts}.rope_theta=5000.0")
    assert with_another[f"{parts}.model_config.rope_theta"] == 5000.0
    assert f"{parts}.model_config" not in with_another
    dotted = small(*chosen, f"verl.{parts}={{rope_scaling.factor: 2.0}}")
    keys = {one.key: one.value for one in planned_settings(dotted, host=SMALL_HOST)}
    assert keys[f"{parts}.model_config.rope_scaling.factor"] == 2.0
    own = settings(SMALL_HOST, *chosen, f"verl.{parts}.model_config.rope_theta=5000.0")
    assert f"{parts}.model_config" not in own
    assert own[f"{parts}.model_config.rope_theta"] == 5000.0


def test_an_attention_of_the_user_keeps_batches_without_padding():
    keys = settings(SMALL_HOST, *ONE_GPU, f"verl.{ATTENTION}=flash_attention_3")
    assert keys[ATTENTION] == "flash_attention_3"
    assert f"{_MODEL}.use_remove_padding" not in keys


def test_a_cluster_keeps_its_own_sizes():
    keys = settings(SMALL_HOST, *ONE_GPU, "verl.address=head:6379")
    assert not set(keys) & {f"{_RAY}.num_cpus", f"{_RAY}.num_gpus", f"{_RAY}.object_store_memory"}
    assert f"{_MODEL}.use_remove_padding" in keys


@given(st.integers(1, 512), st.integers(1, 64), st.integers(1, 64))
def test_ray_never_waits_for_a_cpu(cores, gpus, prompts):
    """All that verl reserves fits at once, with a CPU left to place a process; more cores never mean fewer workers."""
    found = processes_for(cores, prompts)
    assert found.ray_cpus(gpus) >= CPUS_PER_GPU * gpus + found.storage + 2
    more = processes_for(cores + 1, prompts)
    for fewer, larger in zip(vars(found).values(), vars(more).values(), strict=True):
        assert fewer <= larger <= USUAL_WORKERS
    assert 1 <= found.agents <= prompts
    assert min(found.rewards, found.storage) >= 1


@given(st.floats(8e9, 2e11), st.floats(1e6, 1e11), st.integers(1, 1024))
def test_vllm_leaves_the_trainer_its_memory_where_there_is_any(gpu_bytes, weights, ranks):
    state = 16 * weights / ranks
    share = memory_share(gpu_bytes, state)
    assert 0.1 <= share <= 0.5
    assert share == 0.1 or share * gpu_bytes + state <= gpu_bytes
    assert memory_share(gpu_bytes, state / 2) >= share


def test_a_model_that_nearly_fills_the_gpu_gets_a_smaller_share_for_vllm(tmp_path):
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(2 * 600_000_000)  # a sparse file: 0.6 billion weights
    keys = settings(SMALL_HOST, *ONE_GPU, f"model.path={tmp_path}")
    assert keys[f"{_ROLLOUT}.gpu_memory_utilization"] == 0.35
    assert f"{_ROLLOUT}.gpu_memory_utilization" not in settings(MIDDLE_HOST, *ONE_GPU, f"model.path={tmp_path}")


FSDP = "verl.actor_rollout_ref.actor.fsdp_config"


@pytest.mark.parametrize(
    ("chosen", "per_weight"),
    [
        ([], 16),
        (["model.lora.rank=8"], 4),
        ([f"{FSDP}.optimizer_offload=true"], 8),
        ([f"{FSDP}.param_offload=true"], 8),
        ([f"{FSDP}.param_offload=true", f"{FSDP}.optimizer_offload=true"], 0),
        ([f"{FSDP}.param_offload=true", "model.lora.rank=8"], 0),
        ([f"{FSDP}.offload_policy=true"], 0),
        ([f"{FSDP}.param_offload=false"], 16),
    ],
)
def test_what_is_frozen_or_in_main_memory_does_not_lower_the_share_of_vllm(chosen, per_weight, tmp_path):
    """Eight billion weights on one GPU: with less than 0.11 of it vLLM could not hold its own copy of them."""
    assert state_bytes(small(*ONE_GPU, *chosen)) == per_weight
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(2 * 8 * 10**9)  # a sparse file
    share = settings(MIDDLE_HOST, *ONE_GPU, f"model.path={tmp_path}", *chosen).get(MEMORY_SHARE, 0.5)
    assert share == (0.1 if per_weight == 16 else 0.5)


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
}


def of_shape(folder, **other):
    (folder / "config.json").write_text(json.dumps(LLAMA | other))
    (folder / "model.safetensors").touch()
    return f"model.path={folder}"


def test_vllm_takes_no_more_than_the_largest_batch_needs(tmp_path):
    """30 layers x 2 x 3 heads x 64 x 2 bytes = 23,040 bytes per token; blocks of 16 tokens, and one in advance."""
    model = (of_shape(tmp_path), "model.dtype=bfloat16", "rollout.n=16", "rollout.max_response_tokens=200",
             "rollout.max_prompt_tokens=100", "validation.every=0")  # fmt: skip
    keys = settings(MIDDLE_HOST, *ONE_GPU, *model)
    assert keys[CACHE_BYTES] == 16 * 16 * (300 + 32) * 23_040
    assert keys[CACHE_BYTES] / MIDDLE_HOST.gpu_bytes < keys[MEMORY_SHARE] <= 0.05
    validating = settings(MIDDLE_HOST, *ONE_GPU, *model, "validation.every=5", "validation.problems=512")
    assert validating[CACHE_BYTES] == 2 * keys[CACHE_BYTES]
    limited = settings(MIDDLE_HOST, *ONE_GPU, *model, "rollout.rows_at_once=64")
    assert limited[CACHE_BYTES] * 4 == keys[CACHE_BYTES]
    assert settings(MIDDLE_HOST, *ONE_GPU, *model, "model.dtype=float32")[CACHE_BYTES] == 2 * keys[CACHE_BYTES]


@pytest.mark.parametrize("reason", ["share", "large", "gpus", "sliding", "unknown", "no_config", "context"])
def test_vllm_measures_its_cache_where_its_size_is_not_known_or_not_smaller(tmp_path, reason):
    shapes = {"sliding": {"use_sliding_window": True}, "unknown": {"model_type": "mamba"}}
    more = {
        "share": [f"verl.{MEMORY_SHARE}=0.4"],
        "large": ["rollout.n=64", "rollout.max_response_tokens=8192"],
        "gpus": ["verl.gpus=2"],
        "context": [f"verl.{CONTEXT}=65536"],
    }
    chosen = [*ONE_GPU, of_shape(tmp_path, **shapes.get(reason, {})), *more.get(reason, [])]
    if reason == "no_config":
        (tmp_path / "config.json").write_text("{}")
    keys = settings(MIDDLE_HOST, *chosen)
    assert CACHE_BYTES not in keys
    assert keys.get(MEMORY_SHARE) == (0.4 if reason == "share" else None)


def test_the_cache_of_a_model_on_a_hub_is_not_known():
    assert largest_cache_bytes(small(*ONE_GPU), plain_shape("Qwen/Qwen3-0.6B"), 1000) is None


def test_vllm_compiles_nothing_on_few_cores():
    assert json.loads(settings(MIDDLE_HOST, *ONE_GPU)[COMPILATION])["mode"] == 0
    assert COMPILATION not in settings(LARGE_HOST, *ONE_GPU)
    own = settings(MIDDLE_HOST, *ONE_GPU, f"verl.{COMPILATION}={{mode: 3}}")
    assert own[f"{COMPILATION}.mode"] == 3
    assert COMPILATION not in own


def test_the_dry_run_names_the_machine_and_the_reason(tmp_path):
    shown = dry_run(small(*ONE_GPU, f"runs={tmp_path}"), host=MIDDLE_HOST)
    assert "Sized for this machine: 16 cores, 139 GiB per GPU, without flash-attn." in shown
    assert "this machine: no flash-attn" in shown
    assert "ray_kwargs.ray_init.num_cpus=16" in shown


def test_few_cores_give_workers_of_ray_more_time(tmp_path, monkeypatch):
    config = small(*ONE_GPU)
    for name in STARTING_SLOWLY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_prestart_worker_first_driver", "1")
    held = command(config, [], "python", tmp_path, "1", MIDDLE_HOST).environment
    assert held["RAY_worker_register_timeout_seconds"] == "300"
    assert "RAY_prestart_worker_first_driver" not in held, "the user's value stays"
    assert not set(STARTING_SLOWLY) & set(command(config, [], "python", tmp_path, "1", LARGE_HOST).environment)


def test_the_host_is_that_of_the_interpreter():
    code = f"{HOST_CODE}\nimport json; print(json.dumps(host))"
    told = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    found = look_at_host(sys.executable)
    assert (found.cores, found.flash_attention) == (told["cores"], told["flash_attention"])
    assert found.memory_bytes == told["memory_bytes"] > GIB
    assert look_at_host("/no/such/python").cores == told["cores"]


def test_a_gpu_that_another_process_fills_is_named_before_verl_starts():
    share = [Setting("trainer.n_gpus_per_node", 2, ""), Setting(f"{_ROLLOUT}.gpu_memory_utilization", 0.5, "")]
    full = Installed("python", {}, 2, None, memory=[(70 * GIB, 80 * GIB), (10 * GIB, 80 * GIB)])
    with pytest.raises(InputError, match=r"^GPU 1: 70\.0 of 80\.0 GiB are in use .* takes 0\.50 .*at most 0\.10"):
        require_free_gpus(share, full)
    require_free_gpus([Setting("trainer.n_gpus_per_node", 1, ""), *share[1:]], full)
    require_free_gpus(share[:1], Installed("python", {}, 2, None))
    with pytest.raises(InputError, match="GPU 1"):
        require_free_gpus(share[:1], full)  # verl's default is the same share


def test_ray_has_a_cpu_for_every_storage_unit_of_the_user():
    """With the eight CPUs that four cores are given otherwise, verl would wait for ever."""
    keys = settings(SMALL_HOST, *ONE_GPU, f"verl.{STORAGE_UNITS}=8")
    assert keys[RAY_CPUS] == CPUS_PER_GPU + 8 + 2 + 1 + 1


@pytest.mark.parametrize(("chosen", "reserved"), [([], 6), ([f"verl.{STORAGE_UNITS}=2"], 7)])
def test_too_few_cpus_for_ray_are_refused_instead_of_waiting(tmp_path, chosen, reserved):
    few, enough = (
        (*ONE_GPU, *chosen, f"verl.{RAY_CPUS}={given}", f"runs={tmp_path}") for given in (reserved - 1, reserved)
    )
    with pytest.raises(InputError, match=rf"num_cpus: verl's processes reserve {reserved} CPUs of Ray, and would wait"):
        dry_run(small(*few), host=SMALL_HOST)
    assert f"{RAY_CPUS}={reserved}" in dry_run(small(*enough), host=SMALL_HOST)


def test_a_cluster_with_too_few_cpus_is_refused_instead_of_waiting():
    config = small("verl.device=cuda", "verl.address=head:6379")
    few = Installed("python", {}, 0, {"CPU": 4.0, "GPU": 1.0})
    with pytest.raises(InputError, match="verl's processes reserve 13 CPUs of Ray, and the cluster has 4"):
        require_devices(config, few)
    require_devices(config, Installed("python", {}, 0, {"CPU": 13.0, "GPU": 1.0}))
    require_devices(small("verl.address=head:6379"), few)
