"""Counts of complex elements: one is zero where both of its parts are, and NaN where one of them is.

All other statistics are of the parts, as if they were real elements, and every form takes them so; these two counts are
taken beside it, by torch operations, and put in the place of the parts' when the batch ends.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from numscope.fingerprint.rows import Rows

Tensor = torch.Tensor


class ComplexCounts:
    """The counts of a batch's complex tensors, each on its device until the batch ends."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._counts: list[Tensor] = []  # zero, nan

    def add(self, row: int, tensor: Tensor) -> None:
        """Count the zeros and NaNs of a tensor; waits for no device."""
        with torch.no_grad():
            parts = torch.view_as_real(tensor.detach().resolve_conj().resolve_neg())
            counts = torch.stack([(parts == 0).all(-1).sum(), torch.isnan(parts).any(-1).sum()])
        self._rows.append(row)
        self._counts.append(counts)

    def begin(self) -> Callable[[Rows], None]:
        """Take the pending counts; return a function that waits for them and writes them."""
        if not self._rows:
            return lambda rows: None
        numbers, counts = self._rows, self._counts
        self._rows, self._counts = [], []
        events = {}
        for one in counts:
            if one.is_cuda and one.device not in events:
                events[one.device] = torch.cuda.Event()
                events[one.device].record(torch.cuda.current_stream(one.device))

        def finish(rows: Rows) -> None:
            for event in events.values():
                event.synchronize()
            for row, pair in zip(numbers, counts):
                zero, nan = pair.tolist()
                rows.recount(row, zero, nan)

        return finish
