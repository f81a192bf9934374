"""The CPU as a platform of verl (verl/plugin/platform)."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from egpo.verl.cpu import device_module

NAME = "cpu"


def register_platform() -> None:
    """Register the platform for VERL_PLATFORM=cpu. A second call is harmless: verl stores the class by name."""
    PlatformRegistry.register(platform=NAME)(PlatformCPU)


class PlatformCPU(PlatformBase):  # type: ignore[misc]  # verl has no types
    """One device called "cpu" per process, with gloo between processes. Accelerator-only methods do nothing."""

    @property
    def device_name(self) -> str:
        return NAME

    @property
    def vendor_name(self) -> str:
        return NAME

    @property
    def device_module(self) -> ModuleType:
        return device_module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return False: this platform is chosen only by name, so that no machine trains on its CPU by accident."""
        return False

    def current_device(self) -> torch.device:
        """Return a device, not an index as in the interface: verl passes it to `.to()`, where 0 means cuda:0."""
        return device_module.current_device()

    def device_count(self) -> int:
        return device_module.device_count()

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return the variable in which Ray numbers its logical GPUs; verl reads the numbers from it."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        """Return the Ray resource that each rank requests.

        A machine without GPUs has it, too: `ray.init(num_gpus=ranks)` declares logical GPUs.
        """
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """Return False: weights then go to vLLM through POSIX shared memory."""
        return False

    def cudart(self) -> Any:
        return None
