"""Fingerprints of many tensors as numpy columns: the result of every form of the fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Fingerprints:
    """One row per tensor, in the order in which the tensors were added."""

    elements: NDArray[np.int64]
    nan: NDArray[np.int64]
    posinf: NDArray[np.int64]
    neginf: NDArray[np.int64]
    zero: NDArray[np.int64]
    min: NDArray[np.float64]  # NaN where there is no finite element
    max: NDArray[np.float64]
    mean: NDArray[np.float64]
    l2: NDArray[np.float64]
    hash: NDArray[np.uint64]
    sketch: NDArray[np.float64]  # (rows, 64)

    def __len__(self) -> int:
        return len(self.hash)


class Unmeasured(Exception):
    """A tensor cannot be measured; the message is the reason, which the run shows in place of a fingerprint."""


class Batch(Protocol):
    """Measures tensors one after the other and hands all results over at once.

    `add` reads the tensor as it is now (or has launched what reads it, on the tensor's stream) and keeps no
    reference to it; it neither synchronises nor raises for a dtype it knows.
    """

    def add(self, tensor: Any) -> int:  # of the framework that the batch measures
        """Measure the tensor; return its row in the next `collect`."""
        ...

    def collect(self) -> Fingerprints:
        """Return the rows added since the last `collect`, with one copy from each device."""
        ...
