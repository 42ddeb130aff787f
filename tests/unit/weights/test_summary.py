"""The statistics of a tensor of weights, of every dtype, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from numscope.store.dtypes import SAFETENSORS, numpy_dtype
from numscope.weights.summary import summarise
from numscope.weights.tensor import of_array


@pytest.mark.parametrize("name", [*SAFETENSORS, "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(1,), (7, 9), (3, 1, 250)])
def test_every_statistic_of_every_dtype(name: str, shape: tuple[int, ...]) -> None:
    kind = numpy_dtype(name)
    assert kind is not None
    values = np.random.default_rng(1).integers(0 if name.startswith(("u", "bool")) else -3, 4, shape).astype(np.float64)
    array = (values + 1j * np.roll(values, 1)).astype(kind) if kind.kind == "c" else values.astype(kind)
    found = summarise(of_array("x", array))
    exact = array.astype(np.complex128 if kind.kind == "c" else np.float64)
    parts = exact.reshape(-1).view(np.float64)
    assert (found.zero, found.non_finite) == (np.count_nonzero(exact == 0), 0)
    assert (found.min, found.max) == (parts.min(), parts.max())
    assert found.l2 == pytest.approx(np.linalg.norm(exact))
    assert found.mean == pytest.approx(parts.mean(), abs=1e-12)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_elements_that_are_no_numbers_are_counted_once(name: str) -> None:
    kind = numpy_dtype(name)
    assert kind is not None
    array = np.array([0.0, np.nan, np.inf, -np.inf, 1.0]).astype(kind)
    if kind.kind == "c":
        array[1] = complex(np.nan, np.nan)
    found = summarise(of_array("x", array))
    assert (found.zero, found.non_finite) == (1, 3)
