"""Every form agrees with the definition, on every dtype, size, layout and special value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numscope.fingerprint.columns import Batch
from numscope.fingerprint.numpy_form import NumpyBatch
from numscope.fingerprint.torch_form import TorchBatch
from tests.unit.fingerprint.agreement import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    OperationsBatch,
    assert_agrees,
    numpy_of,
    tensor_of_bytes,
    tensor_of_normals,
)

SIZES = (0, 1, 2, 3, 5, 61, 64, 65, 1023, 1025, 8193, 16384, 16385)
without_compiler = partial(TorchBatch, native=False)
torch_forms = pytest.mark.parametrize("form", [TorchBatch, without_compiler, OperationsBatch])
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")


@torch_forms
@pytest.mark.parametrize("name", FLOATS + INTEGERS + COMPLEX)
def test_every_dtype_and_size(form: Callable[[], Batch], name: str) -> None:
    batch = form()
    tensors = [make(name, size, size) for size in SIZES for make in (tensor_of_normals, tensor_of_bytes)]
    assert [batch.add(tensor) for tensor in tensors] == list(range(len(tensors)))
    result = batch.collect()
    assert len(result) == len(tensors)
    for row, tensor in enumerate(tensors):
        assert_agrees(result, numpy_of(tensor), row, tensor.numel())


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", FLOATS + INTEGERS + COMPLEX[1:])
def test_every_dtype_and_size_in_numpy(name: str, native: bool) -> None:
    batch = NumpyBatch(native)
    arrays = [numpy_of(make(name, size, size)) for size in SIZES for make in (tensor_of_normals, tensor_of_bytes)]
    for array in arrays:
        batch.add(array)
    result = batch.collect()
    for row, array in enumerate(arrays):
        assert_agrees(result, array, row)


@pytest.mark.parametrize("form", [TorchBatch, without_compiler, OperationsBatch, NumpyBatch])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "uint8"])
def test_many_chunks(form: Callable[[], Batch], name: str) -> None:
    tensor = tensor_of_normals(name, 1_200_001, 0)
    batch = form()
    batch.add(numpy_of(tensor) if form is NumpyBatch else tensor)
    assert_agrees(batch.collect(), numpy_of(tensor))


values = st.sampled_from([0.0, -0.0, 1.0, -1.5, 3e-39, -1e-42, 2e38, np.nan, np.inf, -np.inf])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(values, max_size=200), max_size=6), st.sampled_from(["float32", "bfloat16", "float64"]))
def test_special_values(contents: list[list[float]], name: str) -> None:
    tensors = [torch.tensor(content, dtype=torch.float64).to(getattr(torch, name)) for content in contents]
    for form in (TorchBatch, without_compiler, OperationsBatch):
        batch: Batch = form()
        for tensor in tensors:
            batch.add(tensor)
        result = batch.collect()
        for row, tensor in enumerate(tensors):
            assert_agrees(result, numpy_of(tensor), row)


@torch_forms
@pytest.mark.parametrize("filler", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("base", [lambda n: torch.rand(n) + 1, lambda n: -torch.rand(n) - 1, lambda n: torch.zeros(n)])
def test_contents_in_which_zero_is_neither_least_nor_greatest(
    form: Callable[[], Batch], filler: float, base: Callable[[int], torch.Tensor]
) -> None:
    batch = form()
    tensors = []
    for size in (3, 64, 100, 70_000):
        for share in (0.0, 0.5, 1.0):
            tensor = base(size)
            tensor[torch.from_numpy(np.random.default_rng(size).random(size) < share)] = filler
            tensors.append(tensor)
            batch.add(tensor)
    result = batch.collect()
    for row, tensor in enumerate(tensors):
        assert_agrees(result, numpy_of(tensor), row)


@torch_forms
@pytest.mark.parametrize("exponent", [-148, -100, -41, 49, 51, 100, 125])
@pytest.mark.parametrize("size", [100, 66_000])
def test_magnitudes_whose_squares_overflow_or_vanish(form: Callable[[], Batch], exponent: int, size: int) -> None:
    tensor = tensor_of_normals("float64", size, 0)
    batch = form()
    batch.add((tensor * 2.0**exponent).float())
    batch.add(tensor * 2.0 ** (exponent * 8))
    result = batch.collect()
    assert_agrees(result, (tensor * 2.0**exponent).float().numpy(), 0)
    assert_agrees(result, (tensor * 2.0 ** (exponent * 8)).numpy(), 1)


@torch_forms
@pytest.mark.parametrize("value", [0.1, 1 / 3, -1e-3, 65504.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_equal_elements_do_not_drift(form: Callable[[], Batch], value: float, dtype: torch.dtype) -> None:
    batch = form()
    tensors = [torch.full((size,), value, dtype=dtype) for size in (1000, 16384, 300_001)]
    for tensor in tensors:
        batch.add(tensor)
    result = batch.collect()
    for row, tensor in enumerate(tensors):
        assert_agrees(result, numpy_of(tensor), row)


def _views(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [
        tensor.transpose(0, 1),
        tensor.permute(2, 1, 0),
        tensor[::2, :, 1],
        tensor[1:, 1:],
        tensor[..., 0],
        tensor[:1].expand(40, *tensor.shape[1:]),
        tensor[0, 0, 0].expand(3, 5),
        tensor[0, 0, 0],
        tensor[:, :0],
        tensor.unsqueeze(1).transpose(1, 3),
    ]


@torch_forms
@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex64", "complex32", "float8_e4m3fn", "int64", "bool"])
@pytest.mark.parametrize("shape", [(7, 5, 3), (300, 90, 3)])
def test_layout_does_not_matter(form: Callable[[], Batch], name: str, shape: tuple[int, int, int]) -> None:
    views = _views(tensor_of_normals(name, shape[0] * shape[1] * shape[2], 0).view(shape))
    batch = form()
    for view in views:
        batch.add(view)
    result = batch.collect()
    for row, view in enumerate(views):
        assert_agrees(result, numpy_of(view), row, view.numel())


@pytest.mark.parametrize("native", [True, False])
def test_layout_does_not_matter_in_numpy(native: bool) -> None:
    array = np.random.default_rng(0).standard_normal((90, 300, 3)).astype(np.float32)
    views = [
        array.T,
        array[::-1],
        array[:, ::-2, 1],
        array.transpose(1, 0, 2),
        np.broadcast_to(array[:2], (9, 2, 300, 3)),
    ]
    views += [view[:3, :3] for view in views] + [array.astype(">f4")]
    batch = NumpyBatch(native)
    for view in views:
        batch.add(view)
    result = batch.collect()
    for row, view in enumerate(views):
        assert_agrees(result, view, row)


@torch_forms
@pytest.mark.parametrize("size", [6, 300])
def test_conjugated_and_negated_views_are_what_they_show(form: Callable[[], Batch], size: int) -> None:
    value = tensor_of_normals("complex64", size * size, 0).view(size, size)
    views = [value.conj(), value.conj().T, value.conj().imag, value.conj()[0, :3], value.imag]
    batch = form()
    for view in views:
        batch.add(view)
    result = batch.collect()
    for row, view in enumerate(views):
        assert_agrees(result, numpy_of(view), row)


@torch_forms
def test_contents_that_begin_at_an_odd_byte(form: Callable[[], Batch]) -> None:
    raw = tensor_of_bytes("uint8", 100_001, 0)
    batch = form()
    views = [raw[1:], raw[3:80], raw[2:4], raw[1:].view(torch.bool) & True, raw[2:-1].view(torch.bfloat16)]
    for view in views:
        batch.add(view)
    result = batch.collect()
    for row, view in enumerate(views):
        assert_agrees(result, numpy_of(view), row)
