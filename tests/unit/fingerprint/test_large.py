"""A large content that numpy has measured before is known by its hash; nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from numscope.fingerprint.chunks import STEP, Measure
from numscope.fingerprint.columns import Batch
from numscope.fingerprint.constants import CHUNK
from numscope.fingerprint.numpy_form import NumpyBatch
from numscope.fingerprint.torch_form import TorchBatch
from tests.unit.fingerprint.agreement import assert_agrees, numpy_of, tensor_of_normals


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The chunks of which more than the hash was taken."""
    taken: list[int] = []
    original = Measure.add_values

    def add_values(self: Measure, raw: Any) -> None:
        taken.append(self.at)
        original(self, raw)

    monkeypatch.setattr(Measure, "add_values", add_values)
    return taken


@pytest.mark.parametrize("size", [50_000, 9 * CHUNK, 9 * CHUNK + 5])
def test_the_same_content_in_another_place_shape_or_order_is_measured_once(size: int, measured: list[int]) -> None:
    tensor = tensor_of_normals("float32", 2 * size, 0).view(2, size)
    other = tensor.T.contiguous().T  # the same in logical order, transposed in memory
    batch = TorchBatch(native=False)
    for one in (tensor, tensor.clone(), tensor.view(-1), other):
        batch.add(one)
    result = batch.collect()
    assert len(measured) == -(-2 * size // STEP)
    for row in range(4):
        assert_agrees(result, tensor.numpy(), row)
        assert (result.sketch[row] == result.sketch[0]).all()
        assert (result.mean[row], result.l2[row]) == (result.mean[0], result.l2[0])


@pytest.mark.parametrize("at", [0, 5, CHUNK, STEP, 9 * CHUNK - 1])
def test_a_content_that_differs_anywhere_is_another(at: int) -> None:
    one = tensor_of_normals("float32", 9 * CHUNK, 0)
    other = one.clone()
    other[at] = 7e3
    batch = TorchBatch(native=False)
    for tensor in (one, other, one, other):
        batch.add(tensor)
    result = batch.collect()
    for row, tensor in enumerate((one, other, one, other)):
        assert_agrees(result, tensor.numpy(), row)


def test_strided_contents_that_begin_alike_are_told_apart() -> None:
    one = tensor_of_normals("float32", 9 * CHUNK, 0)
    other = one.clone()
    other[-1] = -7e3
    views = [tensor.view(CHUNK, 9).T.contiguous().T for tensor in (one, other)]
    batch = TorchBatch(native=False)
    for tensor in views:
        batch.add(tensor)
    result = batch.collect()
    for row, tensor in enumerate(views):
        assert_agrees(result, numpy_of(tensor), row)


def test_the_same_bits_of_another_kind_or_number_of_elements_are_told_apart() -> None:
    real = tensor_of_normals("float32", 2 * CHUNK, 0)
    batch = TorchBatch(native=False)
    views = [
        real,
        real.view(torch.int32),
        torch.view_as_complex(real.view(-1, 2)),
        real[:CHUNK],
        torch.zeros(CHUNK * 2),
    ]
    views += [torch.zeros(CHUNK), torch.zeros(CHUNK, dtype=torch.float64)]
    for view in views:
        batch.add(view)
    result = batch.collect()
    for row, view in enumerate(views):
        assert_agrees(result, numpy_of(view), row, view.numel())


@pytest.mark.parametrize("form", [TorchBatch, NumpyBatch])
def test_what_was_known_is_forgotten_with_the_rows(form: Callable[[bool], Batch]) -> None:
    tensor = tensor_of_normals("float32", 2 * CHUNK, 0)
    content = tensor if form is TorchBatch else tensor.numpy()
    batch = form(False)
    for _ in range(2):
        batch.add(content)
        batch.add(content)
        result = batch.collect()
        assert_agrees(result, tensor.numpy(), 0)
        assert_agrees(result, tensor.numpy(), 1)


@pytest.mark.parametrize("size", [CHUNK, STEP, STEP + 100])
def test_magnitudes_may_change_from_chunk_to_chunk(size: int) -> None:
    scales = [1, 1e30, 0, 1e-30, 1, 3]
    parts = [np.random.default_rng(at).standard_normal(size) * scale for at, scale in enumerate(scales)]
    parts[5][::7] = np.nan
    parts[4][: size // 2] = -np.inf
    array = np.concatenate(parts).astype(np.float32)
    batch = NumpyBatch(native=False)
    batch.add(array)
    batch.add(array[3 * size :])
    result = batch.collect()
    assert_agrees(result, array, 0)
    assert_agrees(result, array[3 * size :], 1)


def test_more_chunks_than_are_summed_up_at_once() -> None:
    array = np.random.default_rng(0).standard_normal(35 * CHUNK + 77).astype(np.float32)
    batch = NumpyBatch(native=False)
    batch.add(array)
    assert_agrees(batch.collect(), array)


def test_results_are_the_same_bits_for_any_number_of_threads() -> None:
    tensors = [tensor_of_normals("float32", size, size) for size in (1000, 30_000, 5 * CHUNK + 3)]
    tensors += [tensor_of_normals("bfloat16", 4 * CHUNK, 1), tensor_of_normals("float32", 4 * CHUNK, 1).view(512, -1).T]
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        batch = TorchBatch(native=False)
        for tensor in tensors:
            batch.add(tensor)
        results.append(batch.collect())
    torch.set_num_threads(before)
    for name in ("hash", "min", "max", "mean", "l2", "sketch", "zero"):
        columns = [getattr(result, name).tobytes() for result in results]
        assert columns[0] == columns[1] == columns[2], name
