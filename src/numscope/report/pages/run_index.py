"""An index of one run for the pages: finds a call by its order, with its slots, its stack and the data of its tensors."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from numscope.core.dtypes import AnyArray
from numscope.core.errors import NotKeptError
from numscope.core.json_value import Json
from numscope.store.reader import Run
from numscope.store.schema import TableRow

_ARRAYS = 256 * 2**20  # bytes of tensors that are kept in memory for the open page


@dataclass(frozen=True)
class StepIndex:
    """The tables of one step of one rank, with the keys of their rows as arrays."""

    calls: pa.Table
    slots: pa.Table
    tensors: pa.Table
    order: NDArray[np.int64]  # of each row of calls
    slot_call: NDArray[np.int64]  # of each row of slots
    slot_tensor: NDArray[np.int64]  # -1: not measured
    tensor_row: dict[int, int]

    def call_row(self, order: int) -> int:
        hits = np.flatnonzero(self.order == order)
        return int(hits[0]) if len(hits) else -1


class SlotData(NamedTuple):
    """The data of a slot."""

    array: AnyArray
    sampled: bool


class RunIndex:
    """One run with quick access to single calls and tensors."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.step = lru_cache(maxsize=16)(self._step)
        self._stacks = lru_cache(maxsize=16)(self._read_stacks)
        self._arrays: OrderedDict[tuple[int, str, str, tuple[int, ...] | None], AnyArray] = OrderedDict()

    def _step(self, step: int, rank: int) -> StepIndex:
        tables = self.run.step_tables(step, rank)
        numbers = tables.tensors.column("tensor").to_pylist()
        return StepIndex(
            tables.calls,
            tables.slots,
            tables.tensors,
            tables.calls.column("order").to_numpy(),
            tables.slots.column("call").to_numpy(),
            tables.slots.column("tensor").fill_null(-1).to_numpy(),
            {number: row for row, number in enumerate(numbers)},
        )

    def _read_stacks(self, rank: int) -> dict[int, TableRow]:
        return {row["stack"]: row for row in self.run.stacks(rank).to_pylist()}

    def has(self, step: int, rank: int) -> bool:
        """Tell whether this run has a step of a rank."""
        if rank not in self.run.ranks:
            return False
        return step in self.run.rank_steps(rank) or (rank, step) in self.run.incomplete

    def call(self, step: int, rank: int, order: int) -> TableRow | None:
        """Return the call's record with its stack and its slots, or None."""
        index = self.step(step, rank)
        row = index.call_row(order)
        if row < 0:
            return None
        record: TableRow = index.calls.slice(row, 1).to_pylist()[0]
        stack = self._stacks(rank).get(record["stack"]) if record.get("stack") is not None else None
        record["frames"] = stack["frames"] if stack else []
        record["user_frame"] = stack["user"] if stack else None
        record["arguments"] = _arguments(record.get("arguments"))
        record["slots"] = self.slots(step, rank, order)
        return record

    def slots(self, step: int, rank: int, order: int) -> list[TableRow]:
        """Return the call's slots, each with its tensor's fingerprint."""
        index = self.step(step, rank)
        rows: list[TableRow] = []
        for slot in index.slots.take(pa.array(np.flatnonzero(index.slot_call == order))).to_pylist():
            tensor = None
            if slot["tensor"] is not None and slot["tensor"] in index.tensor_row:
                tensor = index.tensors.slice(index.tensor_row[slot["tensor"]], 1).to_pylist()[0]
                for name in ("sketch", "sketch_low"):
                    tensor.pop(name, None)
                tensor["hash"] = None if tensor["hash"] is None else f"{tensor['hash']:016x}"
                tensor["kept"] = bool(tensor["shard"]) and not tensor["sampled"]
            rows.append({"slot": slot["slot"], "note": slot["note"], "tensor": tensor})
        return rows

    def data(self, step: int, rank: int, order: int, slot: str) -> SlotData:
        """Return the data of a slot, or raise NotKeptError with how to keep it."""
        tensor = next((s["tensor"] for s in self.slots(step, rank, order) if s["slot"] == slot), None)
        if tensor is None:
            raise NotKeptError(f"{self.run.path} has no tensor at slot {slot} of call {order} of step {step}")
        if not tensor["shard"]:
            name = self.step(step, rank).calls.column("name")[self.step(step, rank).call_row(order)]
            raise NotKeptError(f"only the fingerprint was kept: capture again with tensors=['{name}']")
        shape = None if tensor["sampled"] else tuple(tensor["shape"])
        key = (rank, tensor["shard"], tensor["key"], shape)
        if key not in self._arrays:
            self._arrays[key] = self.run.array(rank, tensor["shard"], tensor["key"], tensor["dtype"], shape)
            while len(self._arrays) > 1 and sum(array.nbytes for array in self._arrays.values()) > _ARRAYS:
                self._arrays.popitem(last=False)
        self._arrays.move_to_end(key)
        return SlotData(self._arrays[key], bool(tensor["sampled"]))


def _arguments(text: str | None) -> Json:
    try:
        value: Json = json.loads(text) if text else None
        return value
    except ValueError:
        return text
