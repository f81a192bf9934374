"""GPUs, by what a plan needs of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """`bytes` of memory; `bytes_per_s` that a copy moves, read and written; `operations_per_s` of a product of large
    bfloat16 matrices."""

    name: str
    bytes: float
    bytes_per_s: float
    operations_per_s: float


# The H200's rates are measured (benchmarks/one_gpu.py prints them). The others' are nine tenths of what their makers
# state for memory, and four fifths for products: the H200's own shares.
CARDS = {
    "h200": Card("H200, 141 GB", 150.7e9, 4.29e12, 777e12),
    "h100": Card("H100, 80 GB", 85.5e9, 0.9 * 3.35e12, 0.8 * 990e12),
    "a100": Card("A100, 80 GB", 85.1e9, 0.9 * 2.04e12, 0.8 * 312e12),
    "rtx4090": Card("RTX 4090, 24 GB", 25.4e9, 0.9 * 1.01e12, 0.8 * 165e12),
}
