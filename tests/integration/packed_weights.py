"""Matrices packed as GPTQ, AWQ, compressed-tensors and NVFP4 checkpoints have them, number by number as the formats say."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

Packed = dict[str, np.ndarray]
GROUP = 64
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each number of a word, the lowest bits first


def words(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Pack the numbers of each row into words, the lowest bits first; one that does not fit goes on in the next word."""
    rows, count = numbers.shape
    out = np.zeros((rows, -(-count * bits // 32)), np.uint64)
    for at in range(count):
        word, place = divmod(at * bits, 32)
        value = numbers[:, at].astype(np.uint64) << np.uint64(place)
        out[:, word] |= value & np.uint64(0xFFFFFFFF)
        if place + bits > 32:
            out[:, word + 1] |= value >> np.uint64(32)
    return out.astype(np.uint32).view(np.int32)


def grid(matrix: np.ndarray, bits: int, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes (out, in), scales and zero points (out, groups) of each group's own even grid."""
    outputs, inputs = matrix.shape
    parts = matrix.reshape(outputs, inputs // GROUP, GROUP)
    most = (1 << bits) - 1
    if symmetric:
        scale = 2 * np.abs(parts).max(-1) / most
        zero = np.full(scale.shape, 1 << (bits - 1))
    else:
        low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
        scale = (high - low) / most
        zero = np.clip(np.round(-low / scale), 1, most).astype(int)
    scale = scale.astype(np.float16).astype(np.float32)
    codes = np.clip(np.round(parts / scale[..., None]) + zero[..., None], 0, most).astype(int)
    return codes.reshape(outputs, inputs), scale, zero


def gptq(name: str, matrix: np.ndarray, bits: int = 4, symmetric: bool = True, second: bool = False) -> Packed:
    """Return a matrix as GPTQ has it; its second format stores zero points as they are, the first one less."""
    codes, scale, zero = grid(matrix, bits, symmetric)
    return {
        f"{name}.qweight": np.ascontiguousarray(words(codes, bits).T),
        f"{name}.qzeros": words(zero.T - (0 if second else 1), bits),
        f"{name}.scales": np.ascontiguousarray(scale.T).astype(np.float16),
        f"{name}.g_idx": (np.arange(matrix.shape[1]) // GROUP).astype(np.int32),
    }


def gptq_in_order_of_activation(name: str, matrix: np.ndarray) -> Packed:
    """Return a matrix whose inputs were put into groups in another order than they lie in."""
    order = np.random.default_rng(3).permutation(matrix.shape[1])
    packed = gptq(name, matrix[:, order])
    codes, _, _ = grid(matrix[:, order], 4, symmetric=True)
    back = np.argsort(order)
    packed[f"{name}.qweight"] = np.ascontiguousarray(words(codes[:, back], 4).T)
    packed[f"{name}.g_idx"] = (back // GROUP).astype(np.int32)
    return packed


def awq(name: str, matrix: np.ndarray) -> Packed:
    """Return a matrix as AWQ has it: outputs across, eight of them to a word in an order of their own."""
    codes, scale, zero = grid(matrix, 4, symmetric=False)

    def across(numbers: np.ndarray) -> np.ndarray:
        return words(numbers.reshape(len(numbers), -1, 8)[..., AWQ_COLUMNS].reshape(numbers.shape), 4)

    return {
        f"{name}.qweight": across(codes.T),
        f"{name}.qzeros": across(zero.T),
        f"{name}.scales": np.ascontiguousarray(scale.T).astype(np.float16),
    }


def compressed(name: str, matrix: np.ndarray, bits: int = 4, symmetric: bool = True) -> Packed:
    """Return a matrix as compressed-tensors packs it: inputs across, codes without a sign."""
    codes, scale, zero = grid(matrix, bits, symmetric)
    packed = {
        f"{name}.weight_packed": words(codes, bits),
        f"{name}.weight_scale": scale,
        f"{name}.weight_shape": np.array(matrix.shape, np.int64),
    }
    if not symmetric:
        packed[f"{name}.weight_zero_point"] = np.ascontiguousarray(words(zero.T, bits).T)
    return packed


def nvfp4(name: str, matrix: np.ndarray) -> Packed:
    """Return a matrix of E2M1 codes, a float8 scale for sixteen, and one for all."""
    steps = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    parts = matrix.reshape(len(matrix), -1, 16)
    overall = np.float32(np.abs(matrix).max() / (6 * 448))
    scale = (np.abs(parts).max(-1) / 6 / overall).astype(ml_dtypes.float8_e4m3fn)
    true = scale.astype(np.float32)[..., None] * overall
    codes = np.abs(np.abs(parts / true)[..., None] - steps).argmin(-1) | np.where(parts < 0, 8, 0)
    codes = codes.reshape(len(matrix), -1, 2)
    return {
        f"{name}.weight": (codes[..., 0] | codes[..., 1] << 4).astype(np.uint8),
        f"{name}.weight_scale": scale,
        f"{name}.weight_scale_2": overall,
        f"{name}.input_scale": np.float32(0.01),
    }


def mxfp4(name: str, matrix: np.ndarray) -> Packed:
    """Return a matrix of E2M1 codes and a power of two for thirty-two of them."""
    steps = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    parts = matrix.reshape(len(matrix), -1, 32)
    power = np.floor(np.log2(np.abs(parts).max(-1))) - 2
    codes = np.abs(np.abs(parts / 2.0 ** power[..., None])[..., None] - steps).argmin(-1) | np.where(parts < 0, 8, 0)
    codes = codes.reshape(len(matrix), -1, 2)
    return {
        f"{name}.weight_packed": (codes[..., 0] | codes[..., 1] << 4).astype(np.uint8),
        f"{name}.weight_scale": (power + 127).astype(np.uint8),
    }


Pack = Callable[[str, np.ndarray], Packed]


def three_bits(name: str, matrix: np.ndarray) -> Packed:
    return gptq(name, matrix, 3)


def eight_bits(name: str, matrix: np.ndarray) -> Packed:
    return gptq(name, matrix, 8)


def second_format(name: str, matrix: np.ndarray) -> Packed:
    return gptq(name, matrix, second=True)


def with_zero_points(name: str, matrix: np.ndarray) -> Packed:
    return gptq(name, matrix, symmetric=False)


def compressed_with_zero_points(name: str, matrix: np.ndarray) -> Packed:
    return compressed(name, matrix, symmetric=False)


PACKS: dict[str, Pack] = {
    pack.__name__: pack
    for pack in (
        gptq,
        three_bits,
        eight_bits,
        second_format,
        with_zero_points,
        gptq_in_order_of_activation,
        awq,
        compressed,
        compressed_with_zero_points,
        nvfp4,
        mxfp4,
    )
}
