"""Settings that verl, vLLM and Ray need on a CPU, as data. Imports neither torch nor verl.

`ENVIRONMENT` goes into the environment of `python -m verl.trainer.main_ppo`, `OVERRIDES` onto its command line, before
the user's own settings. A key with `+` is one that verl's files do not declare.
"""

from egpo.support import PACKED_ATTENTION

ENVIRONMENT: dict[str, str] = {
    # Every process of verl uses the CPU platform. FSDP engines are registered for "cuda" and "npu", but work on it.
    "VERL_USE_EXTERNAL_MODULES": "egpo.verl.cpu.register",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    # One thread per process: a dozen processes share a few cores, and waiting OpenMP threads spin.
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # GiB of key-value cache; the default is half of the memory.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # vLLM's worker runs in its engine's process: one process less to start, and no queues left in /dev/shm.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Otherwise vLLM's sampler is compiled at first use, which takes 20 s and a C++ compiler.
    "TORCH_COMPILE_DISABLE": "1",
    # Ray: do not end a process because another program fills the memory; start no workers in advance, which verl's
    # environment for its workers makes useless; send no usage reports.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_prestart_worker_first_driver": "0",
    # Seconds that a worker may take to start: 60 are not enough when a dozen of them import vLLM on two cores.
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}

_MODEL, _ACTOR, _ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_REFERENCE = "actor_rollout_ref.ref"

OVERRIDES: dict[str, str | int | float | bool] = {
    "trainer.device": "cpu",
    "trainer.n_gpus_per_node": 1,
    # A rank is a logical GPU of Ray, and every actor needs a CPU: declare more of both than there are cores.
    "ray_kwargs.ray_init.num_cpus": 16,
    "+ray_kwargs.ray_init.num_gpus": "${trainer.n_gpus_per_node}",
    "+ray_kwargs.ray_init.include_dashboard": False,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    "data.dataloader_num_workers": 0,
    "reward.num_workers": 1,
    # flash-attn needs a GPU. Batches without padding need an attention that keeps the sequences apart.
    f"+{_MODEL}.override_config.attn_implementation": PACKED_ATTENTION,
    # Without it verl writes the name of the attention into config.json, and only the plug-in could load the model.
    f"+{_MODEL}.override_config.model_config": "{}",
    f"{_MODEL}.use_remove_padding": True,
    f"{_MODEL}.enable_gradient_checkpointing": False,
    # FSDP1 needs an accelerator. Compiling takes longer than a debugging run.
    f"{_ACTOR}.strategy": "fsdp2",
    f"{_ACTOR}.use_torch_compile": False,
    f"{_ACTOR}.fsdp_config.use_torch_compile": False,
    # With bfloat16 (8 significant bits), entropies near 1 nat have steps of 0.008, and vLLM samples another policy.
    f"+{_ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp32",
    f"+{_ACTOR}.fsdp_config.mixed_precision.reduce_dtype": "fp32",
    f"+{_ACTOR}.fsdp_config.mixed_precision.buffer_dtype": "fp32",
    # The reference policy is float32, too: otherwise the KL of a policy from itself would not be 0.
    f"+{_REFERENCE}.fsdp_config.mixed_precision.param_dtype": "fp32",
    f"+{_REFERENCE}.fsdp_config.mixed_precision.reduce_dtype": "fp32",
    f"+{_REFERENCE}.fsdp_config.mixed_precision.buffer_dtype": "fp32",
    f"{_ROLLOUT}.dtype": "float32",
    f"{_ROLLOUT}.name": "vllm",
    f"{_ROLLOUT}.tensor_model_parallel_size": 1,
    f"{_ROLLOUT}.enforce_eager": True,
    f"+{_ROLLOUT}.engine_kwargs.vllm.distributed_executor_backend": "uni",
    # There is no device memory to free between sampling and training.
    f"{_ROLLOUT}.free_cache_engine": False,
    f"+{_ROLLOUT}.enable_sleep_mode": False,
    f"{_ROLLOUT}.gpu_memory_utilization": 0.1,
    f"{_ROLLOUT}.max_num_seqs": 64,
    # Size of the shared memory through which weights are transferred; no tensor may be larger.
    f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 64,
    f"{_ROLLOUT}.agent.num_workers": 1,
}
