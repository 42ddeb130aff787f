"""Tensors that show the same elements in the same order are measured once, each with its own number and shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from numscope.capture.recording.recorder import Recorder
from numscope.capture.torch.identity.layouts import element_order
from numscope.capture.torch.identity.tensors import Tensors
from numscope.fingerprint.definition import fingerprint
from numscope.fingerprint.torch_form import TorchBatch


class Batches:
    """In the place of a writer: keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, batch: Callable[[], Any], size: int) -> None:
        columns = batch().tensors
        for at in range(len(columns["hash"])):
            self.rows.append({"shape": columns["shape"][at].as_py(), "hash": int(columns["hash"][at])})


class Counting(TorchBatch):
    def __init__(self) -> None:
        super().__init__()
        self.added = 0

    def add(self, tensor: torch.Tensor) -> int:
        self.added += 1
        return super().add(tensor)

    def add_alike(self, tensor: torch.Tensor, alike: object, address: int = -1) -> int:
        self.added += 1
        return super().add_alike(tensor, alike, address)


class Job:
    def __init__(self) -> None:
        self.batch, self.writer = Counting(), Batches()
        self.recorder = Recorder(lambda: self.writer, self.batch, lambda tensor: tensor.numpy())  # type: ignore[arg-type, return-value]
        self.tensors = Tensors(self.recorder)


def true_hash(tensor: torch.Tensor) -> int:
    return int(fingerprint(np.ascontiguousarray(tensor.detach().clone().numpy())).hash[0])


def check(job: Job, shown: list[torch.Tensor], measured: int) -> None:
    """The tensors have a number each and the right rows, and so many were measured."""
    numbers = [job.tensors.number(tensor) for tensor in shown]
    assert len(set(numbers)) == len(shown)
    hashes = [true_hash(tensor) for tensor in shown]
    job.recorder.flush()
    assert job.batch.added == measured
    assert [row["hash"] for row in job.writer.rows] == hashes
    assert [row["shape"] for row in job.writer.rows] == [list(tensor.shape) for tensor in shown]


@pytest.mark.parametrize("size", [4, 400])
def test_another_shape_of_the_same_elements_is_not_measured_again(size: int) -> None:
    base = torch.randn(size, 6, 5)
    check(Job(), [base, base.view(-1), base.view(1, -1, 10), base.unsqueeze(1), base.view(-1, 1)], 1)


def test_another_shape_of_the_same_strides_is_not_measured_again() -> None:
    base = torch.randn(4, 6, 8)
    turned = base.permute(2, 0, 1)
    check(Job(), [turned, turned.unsqueeze(0), turned.reshape(8, 24), turned.unsqueeze(2)], 1)
    part = base[:, 1:3]
    check(Job(), [part, part.reshape(4, 2, 4, 2), part.unsqueeze(1), base[:, 1:3].flatten(1)], 1)


def test_other_elements_another_order_or_another_dtype_are_measured() -> None:
    base = torch.randn(6, 6)
    shown = [base, base.T, base[:3], base[3:], base[::2], base[:, ::2], base.view(torch.int32), base[0].expand(6, 6)]
    check(Job(), shown, len(shown))


def test_what_was_written_to_is_measured_again_in_every_shape() -> None:
    job, base = Job(), torch.randn(4, 6)
    before = [job.tensors.number(base), job.tensors.number(base.view(-1))]
    base.add_(1)
    after = [job.tensors.number(base.view(2, -1)), job.tensors.number(base.view(-1))]
    assert len({*before, *after}) == 4
    assert job.batch.added == 2
    job.tensors.note_write(base)  # unseen by its version
    base.numpy()[0] = 7.0
    job.tensors.number(base.view(3, -1))
    job.tensors.number(base.view(-1, 2))
    assert job.batch.added == 4
    job.recorder.flush()
    assert [row["hash"] for row in job.writer.rows[-2:]] == [true_hash(base)] * 2


def test_rows_of_a_batch_that_was_handed_over_are_not_referred_to() -> None:
    job, base = Job(), torch.randn(4, 6)
    job.tensors.number(base)
    job.recorder.flush()
    job.tensors.number(base.view(-1))
    job.tensors.number(base.view(2, -1))
    job.recorder.flush()
    assert job.batch.added == 2
    assert [row["hash"] for row in job.writer.rows] == [true_hash(base)] * 3


def test_conjugated_views_are_what_they_show() -> None:
    job, base = Job(), torch.randn(4, 6, dtype=torch.complex64)
    shown = [base, base.conj(), base.view(-1), base.conj().view(-1), torch.view_as_real(base)]
    hashes = [true_hash(tensor.resolve_conj()) for tensor in shown]
    for tensor in shown:
        job.tensors.number(tensor)
    job.recorder.flush()
    assert [row["hash"] for row in job.writer.rows] == hashes


def test_a_new_step_measures_all_anew() -> None:
    job, base = Job(), torch.randn(4, 6)
    for _ in range(2):
        job.tensors.number(base)
        job.tensors.number(base.view(-1))
        job.recorder.flush()
        job.tensors.new_step()
    assert job.batch.added == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x.permute(1, 0, 2), lambda x: x.permute(1, 0, 2).unsqueeze(0)),
        (lambda x: x.expand(5, 2, 3, 4), lambda x: x.expand(5, 2, 3, 4).view(5, 6, 4)),
        (lambda x: x[:, :, :1], lambda x: x[:, :, :1].reshape(6, 1)),
    ],
)
def test_orders(one: Callable[[torch.Tensor], torch.Tensor], other: Callable[[torch.Tensor], torch.Tensor]) -> None:
    base = torch.arange(24).view(2, 3, 4)
    assert element_order(one(base)) == element_order(other(base))
    assert one(base).flatten().tolist() == other(base).flatten().tolist()


def test_a_tensor_that_is_written_to_has_a_number_for_each_version_and_one_layout() -> None:
    job = Job()
    parameter = torch.zeros(4, 3)
    job.tensors.number(parameter)
    layouts = len(job.tensors._layouts)
    numbers = []
    for _ in range(5):
        with torch.no_grad():
            parameter += 1
        numbers += [job.tensors.number(parameter), job.tensors.number(parameter)]
    assert numbers == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert len(job.tensors._layouts) == layouts


def test_what_is_gone_is_forgotten_at_every_version() -> None:
    job = Job()
    kept, gone = torch.zeros(2), torch.zeros(2)
    for tensor in (kept, gone):
        job.tensors.number(tensor)
        tensor += 1
        job.tensors.number(tensor)
    del tensor, gone
    job.tensors.forget_dead()
    assert [len(layout.numbers) for layout in job.tensors._layouts.values()] == [2]
