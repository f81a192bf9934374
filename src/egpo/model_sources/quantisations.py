"""The quantisations of GGUF files that can be read: for each, how a block of bytes becomes weights in float32.

A block holds 1, 32 or 256 weights. Its bytes are a C struct of ggml, which the `layout` of a row repeats. In the
formulas, d and m are the block's scale and offset in float16, and q a weight's integer. To add a quantisation: write a
function from blocks to weights, and add a row to QUANTISATIONS.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[Any]
Weights = NDArray[np.float32]

_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
_IQ4_VALUES = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32)


def type_name(type_id: int) -> str:
    """Return ggml's name of a type, or its number if it is not known."""
    return _NAMES.get(type_id, f"number {type_id}")


@dataclass(frozen=True)
class Quantisation:
    """One row of the table: the weights of a block, the fields of its struct, and the function that reads blocks."""

    name: str
    block_weights: int
    layout: tuple[tuple[Any, ...], ...]
    weights_of: Callable[[Blocks], Weights]

    @cached_property
    def _struct(self) -> "np.dtype[Any]":
        return np.dtype(list(self.layout))

    @property
    def block_bytes(self) -> int:
        return self._struct.itemsize

    def dequantise(self, raw: NDArray[np.uint8]) -> Weights:
        """Return the weights (blocks, weights of a block) of raw blocks (blocks, bytes)."""
        return self.weights_of(raw.reshape(-1).view(self._struct)).reshape(-1, self.block_weights)


def _scale(blocks: Blocks, field: str) -> Weights:
    column: Weights = blocks[field].astype(np.float32)[:, None]
    return column


def _fields(packed: Blocks, bits: int, run: int) -> Blocks:
    """Unpack integers of `bits` bits, lowest bits first, from runs of bytes: all the lowest fields of a run come first.

    (n, bytes) becomes (n, bytes * 8 / bits)."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[None, None, :, None]
    parts = packed.reshape(len(packed), -1, 1, run) >> shifts
    return (parts & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def _fifth_bits(blocks: Blocks) -> Blocks:
    """Return the fifth bit of each of 32 weights, as 0 or 16."""
    return np.unpackbits(blocks["high"], axis=1, bitorder="little") << np.uint8(4)


def _plain(blocks: Blocks) -> Weights:
    weights: Weights = blocks["w"].astype(np.float32)
    return weights


def _bf16(blocks: Blocks) -> Weights:
    return (blocks["w"].astype(np.uint32) << np.uint32(16)).view(np.float32)


def _q4_0(blocks: Blocks) -> Weights:
    """d (q - 8)"""
    return _scale(blocks, "d") * (_fields(blocks["q"], 4, 16).astype(np.float32) - np.float32(8))


def _q4_1(blocks: Blocks) -> Weights:
    """d q + m"""
    return _scale(blocks, "d") * _fields(blocks["q"], 4, 16).astype(np.float32) + _scale(blocks, "m")


def _q5_0(blocks: Blocks) -> Weights:
    """d (q - 16)"""
    integers = _fields(blocks["q"], 4, 16) | _fifth_bits(blocks)
    return _scale(blocks, "d") * (integers.astype(np.float32) - np.float32(16))


def _q5_1(blocks: Blocks) -> Weights:
    """d q + m"""
    integers = _fields(blocks["q"], 4, 16) | _fifth_bits(blocks)
    return _scale(blocks, "d") * integers.astype(np.float32) + _scale(blocks, "m")


def _q8_0(blocks: Blocks) -> Weights:
    """d q"""
    return _scale(blocks, "d") * blocks["q"].astype(np.float32)


def _iq4_nl(blocks: Blocks) -> Weights:
    """d value[q], a table of 16 values"""
    return _scale(blocks, "d") * _IQ4_VALUES[_fields(blocks["q"], 4, 16)]


def _scaled(scales: Weights, integers: Blocks) -> Weights:
    """Multiply the integers of each sub-block by its scale: (n, sub-blocks) and (n, 256) to (n, sub-blocks, -1)."""
    product: Weights = scales[:, :, None] * integers.reshape(*scales.shape, -1).astype(np.float32)
    return product


def _q2_k(blocks: Blocks) -> Weights:
    """16 sub-blocks of 16: (d s) q - (m o), with four bits each for s and o"""
    scales = _scale(blocks, "d") * (blocks["scales"] & 15).astype(np.float32)
    offsets = _scale(blocks, "m") * (blocks["scales"] >> 4).astype(np.float32)
    return _scaled(scales, _fields(blocks["q"], 2, 32)) - offsets[:, :, None]


def _q3_k(blocks: Blocks) -> Weights:
    """16 sub-blocks of 16: d (s - 32) (q - 4 if the high bit is 0), with six bits for s, split over twelve bytes"""
    low, high = blocks["scales"][:, :8], blocks["scales"][:, 8:]
    # A run of 8 bytes: all low nibbles, then all high ones. The two high bits of s lie in the last four bytes.
    integers = _fields(low, 4, 8) | (_fields(high, 2, 4) << np.uint8(4))
    scales = _scale(blocks, "d") * (integers.astype(np.float32) - np.float32(32))
    lowered = 4 - 4 * _fields(blocks["high"], 1, 32).astype(np.float32)
    return _scaled(scales, _fields(blocks["q"], 2, 32).astype(np.float32) - lowered)


def _six_bit_pairs(packed: Blocks) -> tuple[Weights, Weights]:
    """Unpack eight scales and eight offsets of six bits from twelve bytes, as Q4_K and Q5_K store them."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (rest & 15) | ((first >> 6) << 4)], axis=1)
    offsets = np.concatenate([second & 63, (rest >> 4) | ((second >> 6) << 4)], axis=1)
    return scales.astype(np.float32), offsets.astype(np.float32)


def _q4_k(blocks: Blocks) -> Weights:
    """8 sub-blocks of 32: (d s) q - (m o)"""
    scales, offsets = _six_bit_pairs(blocks["scales"])
    return (
        _scaled(_scale(blocks, "d") * scales, _fields(blocks["q"], 4, 32)) - (_scale(blocks, "m") * offsets)[:, :, None]
    )


def _q5_k(blocks: Blocks) -> Weights:
    """8 sub-blocks of 32: (d s) q - (m o); bit i of the high bytes belongs to sub-block i"""
    scales, offsets = _six_bit_pairs(blocks["scales"])
    integers = _fields(blocks["q"], 4, 32) | (_fields(blocks["high"], 1, 32) << np.uint8(4))
    return _scaled(_scale(blocks, "d") * scales, integers) - (_scale(blocks, "m") * offsets)[:, :, None]


def _q6_k(blocks: Blocks) -> Weights:
    """16 sub-blocks of 16: (d s) (q - 32), with four low bits and two high bits of q stored apart"""
    integers = _fields(blocks["q"], 4, 64) | (_fields(blocks["high"], 2, 32) << np.uint8(4))
    scales = _scale(blocks, "d") * blocks["scales"].astype(np.float32)
    return _scaled(scales, integers.astype(np.float32) - np.float32(32))


_D, _M = ("d", "<f2"), ("m", "<f2")
QUANTISATIONS = {
    0: Quantisation("F32", 1, (("w", "<f4"),), _plain),
    1: Quantisation("F16", 1, (("w", "<f2"),), _plain),
    30: Quantisation("BF16", 1, (("w", "<u2"),), _bf16),
    2: Quantisation("Q4_0", 32, (_D, ("q", "u1", 16)), _q4_0),
    3: Quantisation("Q4_1", 32, (_D, _M, ("q", "u1", 16)), _q4_1),
    6: Quantisation("Q5_0", 32, (_D, ("high", "u1", 4), ("q", "u1", 16)), _q5_0),
    7: Quantisation("Q5_1", 32, (_D, _M, ("high", "u1", 4), ("q", "u1", 16)), _q5_1),
    8: Quantisation("Q8_0", 32, (_D, ("q", "i1", 32)), _q8_0),
    20: Quantisation("IQ4_NL", 32, (_D, ("q", "u1", 16)), _iq4_nl),
    10: Quantisation("Q2_K", 256, (("scales", "u1", 16), ("q", "u1", 64), _D, _M), _q2_k),
    11: Quantisation("Q3_K", 256, (("high", "u1", 32), ("q", "u1", 64), ("scales", "u1", 12), _D), _q3_k),
    12: Quantisation("Q4_K", 256, (_D, _M, ("scales", "u1", 12), ("q", "u1", 128)), _q4_k),
    13: Quantisation("Q5_K", 256, (_D, _M, ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)), _q5_k),
    14: Quantisation("Q6_K", 256, (("q", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), _D), _q6_k),
}
"""By ggml's number of the type."""
