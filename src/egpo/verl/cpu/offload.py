"""Parameters that are on the CPU need not be offloaded to it."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from egpo.verl.cpu.replacements import replace


def keep_parameters_in_place(fsdp_utils: ModuleType) -> None:
    """For verl/workers/engine/fsdp/transformer_impl.py:462: the reference policy is offloaded with pinned memory.

    Only an accelerator can pin, and there is nowhere to offload to: FSDP2's policy that does nothing takes its place.
    """
    replace(fsdp_utils, "CPUOffloadPolicy", _no_offload)


def _no_offload(policy: type) -> Callable[..., Any]:
    from torch.distributed.fsdp import OffloadPolicy

    def no_offload(*args: Any, **kwargs: Any) -> Any:
        return OffloadPolicy()

    return no_offload
