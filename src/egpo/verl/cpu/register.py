"""What every process of verl imports (VERL_USE_EXTERNAL_MODULES): the platform, and where verl 0.9.1 needs mending.

A patch waits until verl or vLLM imports the module it is for. None of them imports anything heavy into a process that
would do without, and a process that `import verl` does not reach (a plain `vllm serve`) is left as it was.
"""

from egpo.verl.cpu.distribution import answer_for_vllm
from egpo.verl.cpu.offload import keep_parameters_in_place
from egpo.verl.cpu.pausing import pause_as_verl_asks
from egpo.verl.cpu.platform import register_platform
from egpo.verl.cpu.polling import poll_often
from egpo.verl.cpu.process_groups import drop_repeated_backends
from egpo.verl.cpu.vllm_linear import keep_linear_weights
from egpo.verl.cpu.weight_transfer import copy_weights_and_report_failures
from egpo.verl.imports import Patch, when_imported

PATCHES: dict[str, Patch] = {
    "torch.distributed": drop_repeated_backends,
    "verl.utils.fsdp_utils": keep_parameters_in_place,
    "verl.trainer.ppo.v1.replay_buffer": poll_often,
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer": copy_weights_and_report_failures,
    "vllm.model_executor.layers.utils": keep_linear_weights,
    "vllm.v1.engine.async_llm": pause_as_verl_asks,
}

register_platform()
answer_for_vllm()
for _name, _patch in PATCHES.items():
    when_imported(_name, _patch)
