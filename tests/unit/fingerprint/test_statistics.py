"""Every statistic of every dtype, held against float64 by the words of its definition, in each form on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from numscope.fingerprint.columns import Batch, Fingerprints
from numscope.fingerprint.definition import fingerprint
from numscope.fingerprint.numpy_form import NumpyBatch
from numscope.fingerprint.torch_form import TorchBatch
from tests.unit.fingerprint.agreement import COMPLEX, FLOATS, INTEGERS, OperationsBatch, tensor_of_bytes

FORMS: dict[str, Callable[[], Batch]] = {
    "compiled": TorchBatch,
    "numpy calls": lambda: TorchBatch(native=False),
    "operations": OperationsBatch,
    "arrays": NumpyBatch,
    "arrays without compiled": lambda: NumpyBatch(native=False),
}
SIZES = (0, 1, 300, 20_000)


def parts_of(tensor: torch.Tensor) -> list[tuple[float, ...]]:
    """Return the parts of each element as Python's floats: one, or two of a complex element."""
    flat = tensor.reshape(-1)
    if not flat.dtype.is_complex:
        return [(value,) for value in flat.to(torch.float64).tolist()]
    return [tuple(pair) for pair in torch.view_as_real(flat).to(torch.float64).tolist()]


def by_definition(tensor: torch.Tensor) -> dict[str, float]:
    elements = parts_of(tensor)
    finite = [part for parts in elements for part in parts if math.isfinite(part)]
    exponent = max((math.frexp(part)[1] for part in finite), default=0)  # scaled by a power of two: nothing overflows
    scaled = [math.ldexp(part, -exponent) for part in finite]
    return {
        "elements": len(elements),
        "nan": sum(any(math.isnan(part) for part in parts) for parts in elements),
        "zero": sum(all(part == 0 for part in parts) for parts in elements),
        "posinf": sum(part == math.inf for parts in elements for part in parts),
        "neginf": sum(part == -math.inf for parts in elements for part in parts),
        "min": min(finite, default=math.nan),
        "max": max(finite, default=math.nan),
        "mean": times(math.fsum(scaled) / len(finite), exponent) if finite else math.nan,
        "l2": times(math.sqrt(math.fsum(part * part for part in scaled)), exponent),
    }


def times(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf


def measured(form: str, tensor: torch.Tensor) -> Fingerprints | None:
    batch = FORMS[form]()
    if not form.startswith("arrays"):
        batch.add(tensor)
        return batch.collect()
    try:
        batch.add(tensor.numpy())
    except TypeError:  # numpy has no such dtype
        return None
    return batch.collect()


def normal(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of random bits as one of moderate sizes, with zeros, infinities and NaNs among them."""
    values = torch.linspace(-3, 3, tensor.numel() * (2 if tensor.dtype.is_complex else 1), dtype=torch.float64)
    values[::7], values[3::11] = 0.0, 0.0
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        values[5::13], values[6::17], values[8::19] = math.nan, math.inf, -math.inf
    if tensor.dtype.is_complex:
        half = values.to(
            {torch.complex32: torch.float16, torch.complex64: torch.float32}.get(tensor.dtype, values.dtype)
        )
        return torch.view_as_complex(half.view(-1, 2))
    return (
        values.abs().to(tensor.dtype)
        if str(tensor.dtype) in ("torch.uint16", "torch.uint32", "torch.uint64")
        else values.to(tensor.dtype)
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, *COMPLEX])
def test_every_statistic_is_what_its_definition_says(name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    for size in SIZES:
        bits = tensor_of_bytes(name, size, size)
        for tensor in (bits, normal(bits)):
            expected = by_definition(tensor)
            for form in FORMS:
                found = measured(form, tensor)
                if found is not None:
                    agree(found, expected, (form, size))


def agree(found: Fingerprints, expected: dict[str, float], where: tuple[str, int]) -> None:
    for statistic in ("elements", "nan", "zero", "posinf", "neginf", "min", "max"):
        value, right = float(getattr(found, statistic)[0]), expected[statistic]
        assert value == right or (math.isnan(value) and math.isnan(right)), (*where, statistic, value, right)
    if expected["l2"] > 1e300:  # beyond what float64 can sum
        return
    assert found.l2[0] == pytest.approx(expected["l2"], rel=1e-6), where
    if expected["l2"]:
        root = expected["l2"] / math.sqrt(expected["elements"])
        assert abs(found.mean[0] - expected["mean"]) <= 1e-6 * root, where


def test_a_real_complex_tensor_has_no_zeros() -> None:
    array = np.arange(1, 242).astype(np.complex64)
    assert fingerprint(array).zero[0] == 0
    for native in (True, False):
        batch = TorchBatch(native)
        batch.add(torch.from_numpy(array))
        batch.add(torch.zeros(4, dtype=torch.complex128).conj())
        batch.add(torch.tensor([complex(math.nan, 0), complex(0, math.nan), 0]))
        found = batch.collect()
        assert found.zero.tolist() == [0, 4, 1]
        assert found.nan.tolist() == [0, 0, 2]
