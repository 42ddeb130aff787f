"""One step of one rank of a run as a graph: the call that made each tensor, and the data of kept tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from numscope.core.errors import NotKeptError
from numscope.core.json_value import Json
from numscope.core.operators import canonical
from numscope.store.reader import Run

if TYPE_CHECKING:  # a run can be read, and grafted into a Paddle model, without torch
    import torch

Array = npt.NDArray[np.generic]  # of whatever dtype was recorded

_TENSOR = ["tensor", "dtype", "shape", "device", "hash", "shard", "key", "sampled"]
_USER_CODE = ("Function", "Custom")  # prefixes of calls that run the user's code
_THIN = 4  # a call with more calls inside is more than a wrapper


class PlainArguments(NamedTuple):
    """The arguments of a call that are not tensors, in their recorded form."""

    args: dict[str, Json]  # by position
    kwargs: dict[str, Json]


@dataclass(frozen=True)
class RecordedCall:
    """One recorded call."""

    order: int
    name: str
    kind: str
    module: str
    phase: str
    parent: int | None
    forward: int | None
    arguments: str | None
    recompute: bool
    error: str | None

    @property
    def head(self) -> str:
        """The name without index and phase: `Functional.linear`."""
        return self.name.rsplit(".", 2)[0]

    @property
    def prefix(self) -> str:
        """The namespace in which the operator lies: `Functional`."""
        return self.head.partition(".")[0]

    @property
    def op(self) -> str:
        """The operator alone: `linear`, `__add__`."""
        return self.head.removeprefix(f"{self.prefix}.")

    @property
    def operator(self) -> str:
        """The canonical operator, with a prime for backward: `Tensor.__mul__` and `Torch.mul` are both `mul`."""
        return canonical(self.op) + ("'" if self.is_gradient else "")

    @property
    def is_gradient(self) -> bool:
        """Whether this is the backward part of a call, not a call that ran during the backward pass."""
        return self.phase == "backward" and ".backward" in self.name

    def plain_arguments(self) -> PlainArguments:
        """Return the arguments that are not tensors."""
        found = json.loads(self.arguments) if self.arguments else {}
        return PlainArguments(found.get("args") or {}, found.get("kwargs") or {})


class Content(NamedTuple):
    """The key of a tensor's content: equal for tensors that are equal to the bit."""

    hash: int | None
    dtype: str
    shape: tuple[int, ...]


class ShardKey(NamedTuple):
    """The place of a tensor's data in the run."""

    shard: str
    key: str


class ParameterGradient(NamedTuple):
    """The tensors of a parameter and of its gradient, as numbers."""

    parameter: int
    gradient: int


@dataclass(frozen=True)
class RecordedTensor:
    """One recorded tensor."""

    number: int
    dtype: str
    shape: tuple[int, ...]
    device: str
    hash: int | None
    stored: ShardKey | None  # None where not all data was kept

    @property
    def content(self) -> Content:
        """The key of the tensor's content."""
        return Content(self.hash, self.dtype, self.shape)


class StepGraph:
    """The calls, slots and tensors of one step of one rank."""

    def __init__(self, run: Run, step: int, rank: int) -> None:
        self.run = run
        self.step = step
        self.rank = rank
        tables = run.step_tables(step, rank)
        self.calls: dict[int, RecordedCall] = {}
        self.by_name: dict[str, RecordedCall] = {}
        columns = [field.name for field in fields(RecordedCall)]
        for row in tables.calls.select(columns).sort_by("order").to_pylist():
            call = RecordedCall(**row)
            self.calls[call.order] = call
            self.by_name.setdefault(call.name, call)
        self._slots: dict[int, dict[str, int | None]] = {order: {} for order in self.calls}
        self._notes: dict[tuple[int, str], str] = {}
        slots = tables.slots.select(["call", "slot", "tensor", "note"]).to_pydict()
        for order, slot, number, note in zip(*slots.values()):
            if order in self._slots:
                self._slots[order][slot] = number
                if note is not None:
                    self._notes[order, slot] = note
        self.tensors: dict[int, RecordedTensor] = {}
        for row in tables.tensors.select(_TENSOR).to_pylist():
            number, dtype, device = row["tensor"], row["dtype"], row["device"] or ""
            is_whole = row["shard"] is not None and not row["sampled"]
            stored = ShardKey(row["shard"], row["key"]) if is_whole else None
            self.tensors[number] = RecordedTensor(number, dtype, tuple(row["shape"]), device, row["hash"], stored)
        self._share_data()
        self._data: dict[int, torch.Tensor] = {}
        self._held = 0
        self._join_remeasured()

    def _share_data(self) -> None:
        """Let a tensor whose data was not kept have that of one with the same bits.

        A tensor that is asked for under its second name may have been measured, and got its number, under its first.
        """
        kept = {
            one.content: one.stored for one in self.tensors.values() if one.stored is not None and one.hash is not None
        }
        for number, one in self.tensors.items():
            if one.stored is None and one.hash is not None and (stored := kept.get(one.content)) is not None:
                self.tensors[number] = replace(one, stored=stored)

    def _join_remeasured(self) -> None:
        """Give a tensor that no call made the number of an equal one that a call made.

        A tensor that may have been written to unseen (by a collective, by a raw kernel) is measured again under another
        number, even if nothing was written, and its link to the call that made it is lost.
        """
        made = self.producer
        twins = {}
        for number, tensor in self.tensors.items():
            if number not in made and tensor.hash is not None:
                twin = self.by_content[tensor.content]
                if twin != number and twin in made:
                    twins[number] = twin
        if twins:
            for slots in self._slots.values():
                for slot, found in slots.items():
                    if found in twins:
                        slots[slot] = twins[found]
            del self.__dict__["producer"]

    def slots(self, order: int, *groups: str) -> dict[str, int | None]:
        """Return slot → tensor number of a call, of these groups (`input`, `kwargs`, `output` …) or all."""
        found = self._slots.get(order, {})
        return {slot: n for slot, n in found.items() if not groups or slot.partition(".")[0] in groups}

    def note(self, order: int, slot: str) -> str:
        """Return why a slot's tensor was not measured."""
        return self._notes.get((order, slot), "not recorded")

    def inputs(self, order: int) -> list[int]:
        """Return the numbers of a call's input tensors; those of a backward call include its forward call's."""
        call = self.calls[order]
        found = list(self.slots(order, "input", "kwargs", "parameters", "parameters_grad", "buffers").values())
        if call.is_gradient and call.forward is not None:
            found += self.slots(call.forward, "input", "kwargs").values()
        return [number for number in found if number is not None]

    def outputs(self, order: int) -> dict[str, int]:
        """Return slot → number of a call's outputs."""
        return {slot: number for slot, number in self.slots(order, "output").items() if number is not None}

    def kept(self, number: int) -> bool:
        """Tell whether all data of a tensor was kept."""
        return number in self.tensors and self.tensors[number].stored is not None

    def data(self, number: int) -> torch.Tensor:
        """Return a tensor's data, bit for bit, on the CPU; not to be written to."""
        found = self._data.get(number)
        if found is None:
            found = self._data[number] = to_torch(self.array(number), self.tensors[number].dtype)
            self._held += found.nbytes
        return found

    def held(self) -> int:
        """Return how many bytes of data are held in memory."""
        return self._held

    def forget(self) -> None:
        """Let go of the data: it is read again where it is needed."""
        self._data.clear()
        self._held = 0

    def array(self, number: int) -> Array:
        """Return a tensor's data as a numpy array."""
        tensor = self.tensors[number]
        if tensor.stored is None:
            raise NotKeptError(f"the data of {self.name_of(number)} was not kept")
        return self.run.array(self.rank, tensor.stored.shard, tensor.stored.key, tensor.dtype, tensor.shape)

    def name_of(self, number: int) -> str:
        """Return a tensor's name: that of the parameter, or of its slot in the call that made it or has it first."""
        if number in self._parameter_names:
            return self._parameter_names[number]
        maker = self.producer.get(number)
        for order in (maker,) if maker is not None else self._slots:
            for slot, found in self._slots[order].items():
                if found == number and (maker is None or slot.startswith("output")):
                    return f"{self.calls[order].name}.{slot}"
        return f"tensor {number}"

    def parameters_holding(self, content: Content) -> list[str]:
        """Return the names of the parameters and buffers that have this content."""
        return [name for number, name in self._parameter_names.items() if self.tensors[number].content == content]

    @cached_property
    def gradients_of_parameters(self) -> dict[str, ParameterGradient]:
        """Return the parameters with a recorded gradient, by name: that of their module's backward, else the optimizer's."""
        numbers = {name: number for number, name in reversed(self._parameter_names.items())}  # as they were first
        found: dict[str, ParameterGradient] = {}
        kinds = ("module", "optimizer")
        for call in sorted(self.calls.values(), key=lambda call: kinds.index(call.kind) if call.kind in kinds else 2):
            home = f"{call.module}." if call.kind == "module" and call.module else ""
            for slot, gradient in self.slots(call.order, "parameters_grad").items():
                name = home + slot.removeprefix("parameters_grad.")
                if gradient is not None and name in numbers:
                    found.setdefault(name, ParameterGradient(numbers[name], gradient))
        return found

    def replayable_calls(self) -> Iterator[RecordedCall]:
        """Yield the calls that a replay makes: no modules, and for a thin wrapper the wrapper alone."""
        for call in self.calls.values():
            if call.kind not in ("api", "aten", "collective") or call.error is not None:
                continue
            if call.prefix in _USER_CODE and self._children.get(call.order):
                continue  # the user's code: the calls that it makes are replayed
            if self.outermost_wrapper(call.order) == call.order:
                yield call

    def outermost_wrapper(self, order: int) -> int:
        """Return the outermost call that only wraps a call: `Functional.softmax` for the `Tensor.softmax` in it."""
        call = self.calls[order]
        parent = self.calls.get(call.parent) if call.parent is not None else None
        while (
            parent is not None
            and parent.kind in ("api", "aten")
            and parent.prefix not in _USER_CODE
            and self._children.get(parent.order, 0) <= _THIN
        ):
            call = parent
            parent = self.calls.get(call.parent) if call.parent is not None else None
        return call.order

    @cached_property
    def _parameter_names(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for call in self.calls.values():
            if call.kind in ("module", "optimizer"):
                home = call.module if call.kind == "module" else ""
                for slot, number in self.slots(call.order, "parameters", "buffers").items():
                    if number is not None:
                        _, _, name = slot.partition(".")
                        found.setdefault(number, f"{home}.{name}" if home else name)
        return found

    @cached_property
    def _children(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for call in self.calls.values():
            if call.parent is not None:
                found[call.parent] = found.get(call.parent, 0) + 1
        return found

    @cached_property
    def producer(self) -> dict[int, int]:
        """Tensor number → order of the call that made it; a call that returns its input does not make it."""
        found: dict[int, int] = {}
        seen: set[int] = set()
        for call in self.replayable_calls():
            numbers = {number for number in self.slots(call.order).values() if number is not None}
            outputs = set(self.outputs(call.order).values())
            inputs = {
                number
                for slot, number in self.slots(call.order).items()
                if number is not None and not slot.startswith("output")
            }
            seen |= numbers - outputs
            for number in outputs - inputs - seen:
                found.setdefault(number, call.order)
            seen |= outputs
        return found

    @cached_property
    def consumers(self) -> dict[int, list[int]]:
        """Tensor number → orders of the calls that have it as an input."""
        found: dict[int, list[int]] = {}
        for order, slots in self._slots.items():
            for slot, number in slots.items():
                if number is not None and not slot.startswith("output"):
                    found.setdefault(number, []).append(order)
        return found

    @cached_property
    def by_content(self) -> dict[Content, int]:
        """Content → number of the first tensor that has it."""
        found: dict[Content, int] = {}
        for number, tensor in self.tensors.items():
            if tensor.hash is not None:
                found.setdefault(tensor.content, number)
        return found


_WITHOUT_NUMPY_FORM = {
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
}


def to_torch(array: Array, dtype: str) -> torch.Tensor:
    """Return an array of a run as a torch tensor, bit for bit."""
    import torch

    kind = getattr(torch, dtype)
    if array.dtype.kind == "V" or array.dtype.name in _WITHOUT_NUMPY_FORM:
        raw = np.int16 if array.dtype.itemsize == 2 else np.uint8
        return torch.from_numpy(np.array(array, copy=True, order="C").view(raw)).view(kind).reshape(array.shape)
    return torch.from_numpy(np.array(array, copy=True, order="C")).to(kind)
