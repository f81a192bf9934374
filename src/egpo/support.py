"""What egpo supports, and what training takes per weight: facts that several packages need, each stated once.

The pins in `pyproject.toml` and `environments/` must agree with the versions here (tests/test_support.py).
"""

PYTHON_VERSIONS = ((3, 11), (3, 12))
TORCH = ">=2.11"
TRANSFORMERS = ">=5.9,<6"

VERL_VERSION = "0.9.1"
"""The only supported version: the plug-in reads verl's batches and replaces its trainers."""
VLLM = ">=0.18"
VLLM_CPU_VERSION = "0.32.0"
"""The version whose functions the CPU platform of verl replaces."""
RAY = ">=2.41"

FAST_ARCHITECTURES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""Architectures with fast kernels, on CPUs and on GPUs: name by `model_type`. Described in
`local/models/architectures.py`; other models run on transformers' own layers."""

# Bytes per trained weight, besides the weight itself. All are float32.
GRADIENT_BYTES = 4
MOMENT_BYTES = 8
"""AdamW's two moving averages."""
MASTER_BYTES = 4
"""A copy of weights that have less precision than float32."""


def optimizer_bytes(weight_bytes: int) -> int:
    """Return the bytes that AdamW keeps per trained weight of `weight_bytes` (4: float32, 2: bfloat16)."""
    return MOMENT_BYTES + (MASTER_BYTES if weight_bytes < 4 else 0)
