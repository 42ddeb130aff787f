"""The agreement of a form of the fingerprint with the definition, and tensors to try it on."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import torch

from numscope.fingerprint.columns import Fingerprints
from numscope.fingerprint.definition import fingerprint
from numscope.fingerprint.rows import Rows
from numscope.fingerprint.torch_complex import ComplexCounts
from numscope.fingerprint.torch_ops import DeviceBatch

EXACT = ("nan", "posinf", "neginf", "zero", "min", "max", "hash")
FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")
FLOATS += ("float8_e5m2fnuz", "float8_e8m0fnu")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
COMPLEX = ("complex32", "complex64", "complex128")


class OperationsBatch:
    """The form for devices without Triton, on the CPU, where the torch form would not choose it."""

    def __init__(self) -> None:
        self.rows, self.device, self.complex = Rows(), DeviceBatch(torch.device("cpu")), ComplexCounts()

    def add(self, tensor: torch.Tensor) -> int:
        self.rows.count += 1
        self.device.add(self.rows.count - 1, tensor.detach())
        if tensor.dtype.is_complex:
            self.complex.add(self.rows.count - 1, tensor)
        return self.rows.count - 1

    def collect(self) -> Fingerprints:
        self.device.begin()(self.rows)
        self.complex.begin()(self.rows)
        return self.rows.hand_over()


def assert_agrees(result: Fingerprints, array: np.ndarray[Any, Any], row: int = 0, elements: int | None = None) -> None:
    """Assert that a row is the fingerprint of the array: hash, counts, min, max exactly, the rest to 1e-6 of scale."""
    expected = fingerprint(array)
    assert result.elements[row] == (array.size if elements is None else elements)
    counts = {}
    if elements is not None and array.size == 2 * elements:  # the halves of complex32, which numpy does not have
        pairs = array.reshape(-1, 2)
        counts = {"zero": (pairs == 0).all(1).sum(), "nan": np.isnan(pairs).any(1).sum()}
    for name in EXACT:
        one, other = getattr(result, name)[row], counts.get(name, getattr(expected, name)[0])
        assert one == other or (one != one and other != other), (name, one, other)
    scale = float(expected.l2[0])
    if scale > 1e300:  # beyond what float64 can sum
        return
    assert abs(result.l2[row] - scale) <= 1e-6 * scale
    root = scale / max(1, array.size) ** 0.5
    assert np.allclose(result.mean[row], expected.mean[0], rtol=0, atol=1e-6 * root, equal_nan=True)
    unit = scale or 1.0
    assert np.linalg.norm(result.sketch[row] / unit - expected.sketch[0] / unit) <= 1e-6


def numpy_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the tensor's content as numpy has it: bf16 and fp8 by ml_dtypes, halves of complex32 side by side."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    if name == "complex32":
        return plain.view(torch.float16).numpy() if plain.dim() else plain.reshape(1).view(torch.float16).numpy()
    if hasattr(ml_dtypes, name):
        bits = torch.uint8 if plain.dtype.itemsize == 1 else torch.int16
        return plain.reshape(-1).view(bits).numpy().view(getattr(ml_dtypes, name)).reshape(plain.shape)
    return plain.numpy()


def tensor_of_bytes(name: str, count: int, seed: int) -> torch.Tensor:
    """Return `count` elements of random bits: every kind of NaN, infinity and tiny number of a floating dtype."""
    dtype = getattr(torch, name)
    high = 2 if name == "bool" else 256
    raw = np.random.default_rng(seed).integers(0, high, count * dtype.itemsize).astype(np.uint8)
    return torch.from_numpy(raw).view(dtype) if count else torch.empty(0, dtype=dtype)


def tensor_of_normals(name: str, count: int, seed: int) -> torch.Tensor:
    """Return `count` usual elements."""
    dtype = getattr(torch, name)
    value = torch.from_numpy(np.random.default_rng(seed).standard_normal(count * (2 if dtype.is_complex else 1)) * 3)
    if name.startswith("u") or name == "float8_e8m0fnu":
        value = value.abs()
    if not dtype.is_complex:
        return value.to(dtype)
    with warnings.catch_warnings():  # torch says that complex32 is an experiment
        warnings.simplefilter("ignore")
        return torch.view_as_complex(value.view(-1, 2).contiguous()).to(dtype)
