"""Linear layers of vLLM whose weights can be loaded again."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from egpo.verl.cpu.replacements import replace


def keep_linear_weights(layers: ModuleType) -> None:
    """For vllm/model_executor/layers/utils.py:470: weights are packed for the CPU's kernels, and the originals dropped.

    verl loads new weights into the same parameters after every step, so they must still be there.
    """
    replace(layers, "dispatch_cpu_unquantized_gemm", _plain)


def _plain(dispatch: Callable[..., None]) -> Callable[..., None]:
    from torch.nn.functional import linear

    def plain(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = linear

    return plain
