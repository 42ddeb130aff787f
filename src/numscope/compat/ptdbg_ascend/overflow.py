"""Watches for overflows: calls whose finite inputs give non-finite outputs are written to files, then an error is raised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from numscope.compat.live import LiveCall, is_overflow
from numscope.compat.ptdbg_ascend.names import head_of, overflow_stem, role_names
from numscope.store.formats.npy_export import widened


class OverflowWatch:
    """Writes Overflow_info_{time}.pkl and a folder of the same name for each overflow, in the working directory."""

    def __init__(self, limit: int, stop: Callable[[], None]) -> None:
        self._limit = limit
        self._stop = stop
        self._seen = 0
        self._counter = 0

    def forward(self, call: LiveCall) -> None:
        """Look at a forward call."""
        head = head_of(call)
        if head is None:
            return
        name = f"{self._counter}_{head}"
        self._counter += 1
        if is_overflow(call):
            self._write(name, call)

    def backward(self, calls: list[LiveCall]) -> None:
        """Look at the backward calls."""
        for call in calls:
            self.forward(call)

    def _write(self, name: str, call: LiveCall) -> None:
        self._seen += 1
        stem = Path(overflow_stem())
        stem.mkdir()
        with stem.with_suffix(".pkl").open("w", encoding="utf-8") as stream:
            for role, tensor in role_names(call):
                full = f"{name}_{role}"
                np.save(stem / f"{full}.npy", widened(tensor.numpy()))
                stream.write(json.dumps([full, 1, [], tensor.dtype, list(tensor.shape), []]) + "\n")
        if self._seen >= self._limit:
            self._stop()
            raise ValueError(
                f"[overflow {self._seen} times]: {name} overflowed; its tensors are in {stem.with_suffix('.pkl')} and {stem}/"
            )
