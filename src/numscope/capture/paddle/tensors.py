"""Each tensor once, as far as Paddle tells tensors apart, and its content as numpy.

Paddle has no weak reference to a storage, and its optimizers and norms write to parameters and statistics without a new
version. So only results of calls are recognised again: the same live Tensor object at the same version. Parameters,
buffers and leaves are measured each time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np
import paddle
from numpy.typing import NDArray

from numscope.capture.recording.recorder import Recorder
from numscope.fingerprint.columns import Unmeasured

Array = NDArray[np.generic]


class SeenTensor(NamedTuple):
    """A tensor object of the running step, and the number under which it was measured at a version."""

    tensor: weakref.ref[paddle.Tensor]
    version: int
    number: int

    def is_current(self, tensor: paddle.Tensor, version: int) -> bool:
        """Tell whether this is the tensor, and nothing has raised its version since."""
        return self.tensor() is tensor and self.version == version


def dtype_name(tensor: paddle.Tensor) -> str:
    """Return the dtype as a run names it: float32, bfloat16."""
    return str(tensor.dtype).rpartition(".")[2]


def to_numpy(tensor: paddle.Tensor) -> Array:
    """Return a tensor's content, bit for bit; the dtypes numpy lacks come from ml_dtypes."""
    array: Array = np.asarray(tensor.detach().numpy())
    extension_dtype = getattr(ml_dtypes, dtype_name(tensor), None)
    if extension_dtype is not None and array.dtype != extension_dtype:
        array = np.ascontiguousarray(array).view(extension_dtype)
    return np.ascontiguousarray(array).reshape(tuple(tensor.shape))


class Tensors:
    """The tensors of the running step."""

    def __init__(self, recorder: Recorder, measures: bool, sample: tuple[int, int, int] | None) -> None:
        self._recorder = recorder
        self._measures = measures
        self._sample = sample  # head, every k-th of the middle, tail; None where no samples are kept
        self._seen: dict[int, SeenTensor] = {}  # by the id of the tensor object
        self._kept: set[int] = set()

    def number(self, tensor: paddle.Tensor, wanted: Callable[[], bool]) -> int:
        """Return the tensor's number in this step, measuring it if it was not seen, and keep its data where wanted."""
        if not tensor._is_initialized() or not tensor.is_dense():
            raise Unmeasured("not a dense tensor")
        seen = self._seen.get(id(tensor))
        version = int(tensor.inplace_version)
        if seen is not None and seen.is_current(tensor, version) and not bool(tensor.persistable):
            number = seen.number
            if number in self._kept or not wanted():
                return number
            if not self._recorder.is_handed_over(number):
                self._keep(number, to_numpy(tensor))
                return number
        return self._measure(tensor, version, wanted)

    def _measure(self, tensor: paddle.Tensor, version: int, wanted: Callable[[], bool]) -> int:
        strings = self._recorder.strings
        keeps = wanted()
        array = to_numpy(tensor) if self._measures or keeps else None
        dtype, device = strings.id(dtype_name(tensor)), strings.id(_device(tensor))
        shape = self._recorder.shape(tuple(int(size) for size in tensor.shape))
        number = self._recorder.tensor(array, dtype, shape, device)
        if not tensor.is_leaf or tensor.stop_gradient:
            self._seen[id(tensor)] = SeenTensor(weakref.ref(tensor), version, number)
        if keeps and array is not None:
            self._keep(number, array)
        elif self._sample is not None and array is not None:
            self._keep_sample(number, array, *self._sample)
        return number

    def _keep_sample(self, number: int, array: Array, head: int, stride: int, tail: int) -> None:
        flat = array.reshape(-1)
        if flat.size > head + tail:
            flat = np.concatenate([flat[:head], flat[head : flat.size - tail : stride], flat[flat.size - tail :]])
        self._recorder.keep(number, flat, flat.nbytes, sampled=True)

    def _keep(self, number: int, array: Array) -> None:
        self._kept.add(number)
        self._recorder.keep(number, array, array.nbytes)

    def forget_one(self, tensor: paddle.Tensor) -> None:
        """Measure this tensor anew: something has written to it."""
        self._seen.pop(id(tensor), None)

    def forget(self) -> None:
        """Forget all: a new step begins, or an optimizer has written."""
        self._seen.clear()
        self._kept.clear()


def _device(tensor: paddle.Tensor) -> str:
    text = str(tensor.place).lower()  # Place(cpu), Place(gpu:0)
    return text.partition("(")[2].rstrip(")") or text
