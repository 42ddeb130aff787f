"""The tensors and the other values of a call: found in its arguments and results, and named by their slots."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch

from numscope.capture.arguments import describe, key_of, remember
from numscope.capture.recording.interned import Strings

Arguments: TypeAlias = Sequence[object]  # of a function of the user's or torch's: values of any kind
Keywords: TypeAlias = Mapping[str, object]
Argument: TypeAlias = tuple[str, object]  # name or index, value


class Slot(NamedTuple):
    """A tensor in a slot of a call."""

    name: int  # interned
    tensor: torch.Tensor


def slots_of(names: Iterable[int], tensors: Iterable[torch.Tensor]) -> list[Slot]:
    """Return tensors in their slots: an optimizer's are many."""
    return list(map(partial(tuple.__new__, Slot), zip(names, tensors)))


class Place(NamedTuple):
    """The place of a value among a call's arguments."""

    slot: int
    gradient: int  # the slot of its gradient in the call's backward
    name: str


class Values:
    """Finds and names the values of calls; what it has learned of names it keeps."""

    __slots__ = (
        "_argument_ids",
        "_keywords",
        "_list_ids",
        "_positions",
        "_slot_ids",
        "_strings",
        "buffer_slots",
        "first_gradient",
        "first_output",
        "gradient_in",
        "gradient_out",
        "parameter_slots",
        "places",
    )

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._slot_ids: dict[tuple[str, int | str], int] = {}
        self._list_ids: dict[str, list[int]] = {}  # the slots of what a list holds, by the list's own
        self._positions: dict[str, list[int]] = {}  # the first of these
        self._argument_ids: dict[Hashable, int] = {}
        self.parameter_slots: dict[str, int] = {}
        self.buffer_slots: dict[str, int] = {}
        self.gradient_in: dict[int, int] = {}
        self.gradient_out: dict[int, int] = {}
        self.first_output = self.slot_id("output", 0)
        self.first_gradient = self.incoming_slot(self.first_output)
        self.places = [self._place("input", name) for name in NUMBERS]  # of the first positional arguments
        self._keywords: dict[tuple[str, ...], list[Place]] = {}

    def slot_id(self, group: str, index: int | str) -> int:
        """Return the interned slot name `group.index`."""
        key = (group, index)
        found = self._slot_ids.get(key)
        if found is None:
            found = self._slot_ids[key] = self._strings.id(f"{group}.{index}")
        return found

    def flatten(self, group: str, values: Arguments, others: list[Argument]) -> list[Slot]:
        """Return the tensors among positional values with their slots; what is no tensor goes to `others`."""
        found: list[Slot] = []
        ids = self._positions.get(group) or self._learn_positions(group)
        index = -1
        for value in values:
            index += 1
            kind = type(value)
            if kind in _PLAIN:
                assert isinstance(value, torch.Tensor)
                found.append(Slot(ids[index] if index < POSITIONS else self.slot_id(group, index), value))
            elif kind in SIMPLE:
                others.append((NUMBERS[index] if index < POSITIONS else str(index), value))
            else:
                found += self.flatten_one(group, index, value, others)
        return found

    def keywords(self, values: Keywords) -> list[Place]:
        """Return the places of keyword arguments; for the compiled functions."""
        names = tuple(values)
        found = self._keywords.get(names)
        if found is None:
            found = self._keywords[names] = [self._place("kwargs", name) for name in names]
        return found

    def _place(self, group: str, name: str) -> Place:
        slot = self.slot_id(group, name)
        return Place(slot, self.gradient_slot(slot), name)

    def flatten_one(self, group: str, index: int | str, value: object, others: list[Argument]) -> list[Slot]:
        """Return the tensors in one of these values."""
        if isinstance(value, torch.Tensor):
            return [Slot(self.slot_id(group, index), value)]
        if isinstance(value, (list, tuple, dict)) and _holds_tensor(value):
            return self._nested(f"{group}.{index}", value, others, 0)
        others.append((str(index), value))
        return []

    def _learn_positions(self, group: str) -> list[int]:
        return self._positions.setdefault(group, [self.slot_id(group, index) for index in range(POSITIONS)])

    def flatten_named(self, group: str, values: Keywords, others: list[Argument]) -> list[Slot]:
        """Return the tensors among keyword values with their slots."""
        found: list[Slot] = []
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                found.append(Slot(self.slot_id(group, name), value))
            elif isinstance(value, (list, tuple, dict)) and _holds_tensor(value):
                found += self._nested(f"{group}.{name}", value, others, 0)
            else:
                others.append((name, value))
        return found

    def _nested(self, path: str, value: Nested, others: list[Argument], depth: int) -> list[Slot]:
        if isinstance(value, (list, tuple)) and _PLAIN.issuperset(map(type, value)):  # an optimizer's are long
            ids = self._list_ids.get(path, [])
            if len(ids) < len(value):
                ids = self._list_ids[path] = [self.slot_id(path, index) for index in range(len(value))]
            return slots_of(ids, value)
        found: list[Slot] = []
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, torch.Tensor):
                found.append(Slot(self.slot_id(path, key), item))
            elif isinstance(item, (list, tuple, dict)) and depth < 8 and _holds_tensor(item):
                found += self._nested(f"{path}.{key}", item, others, depth + 1)
            else:  # beside a tensor, as the slices of an index: without it the call can't be replayed
                _, _, place = f"{path}.{key}".partition(".")
                others.append((place, item))
        return found

    def flatten_output(self, value: object) -> list[Slot]:
        """Return the tensors of a result with their slots."""
        if isinstance(value, torch.Tensor):
            return [Slot(self.first_output, value)]
        if value is None:
            return []
        if isinstance(value, (list, tuple)):
            return self.flatten("output", value, [])
        if isinstance(value, dict):
            return self.flatten_named("output", value, [])
        if hasattr(value, "__dataclass_fields__"):
            return self.flatten_named("output", dict(vars(value)), [])
        return []

    def arguments(self, positional: list[Argument], named: list[Argument]) -> int:
        """Return the interned JSON of a call's non-tensor arguments, or -1."""
        if not positional and not named:
            return -1
        parts: list[object] = [len(positional)]
        try:
            for name, value in positional + named if named else positional:
                kind = type(value)
                # 0.0 and -0.0 are equal, and NaN is not: all other floats are told apart by themselves.
                exact = kind in EXACT or (kind is float and value and value == value)
                parts += (name, kind, value if exact else key_of(value))
            key = tuple(parts)
            found = self._argument_ids.get(key)
        except Exception:
            return -1
        if found is None:
            shape = {
                **({"args": {n: describe(v) for n, v in positional}} if positional else {}),
                **({"kwargs": {n: describe(v) for n, v in named}} if named else {}),
            }
            found = self._strings.of_call(json.dumps(shape))
            remember(self._argument_ids, key, found)
        return found

    def state_slot(self, slots: dict[str, int], name: str) -> int:
        """Return the slot of a module's parameter or buffer of this name, a new one of these slots."""
        found = slots[name] = self.slot_id("parameters" if slots is self.parameter_slots else "buffers", name)
        return found

    def gradient_slots(self, slots: list[Slot]) -> list[Slot]:
        """Return the outputs of a call with the slots that their gradients have in its backward: `input`."""
        return [Slot(self.incoming_slot(slot), tensor) for slot, tensor in slots]

    def incoming_slot(self, slot: int) -> int:
        """Return the slot that the gradient of an output has in the call's backward: `input`."""
        known = self.gradient_in.get(slot)
        if known is None:
            _, _, tail = self._strings[slot].partition(".")
            known = self.gradient_in[slot] = self.slot_id("input", tail)
        return known

    def gradient_slot(self, slot: int) -> int:
        """Return the slot that the gradient of an input has in the call's backward: `output`."""
        known = self.gradient_out.get(slot)
        if known is None:
            text = self._strings[slot]
            group, _, tail = text.partition(".")
            known = self.gradient_out[slot] = self.slot_id("output", tail if group == "input" else text)
        return known


_PLAIN = {torch.Tensor, torch.nn.Parameter}
SIMPLE = {int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size}
# Equal values of these are described alike.
EXACT = {int, bool, str, type(None), torch.dtype, torch.device, torch.memory_format}
POSITIONS = 16
NUMBERS = [str(index) for index in range(POSITIONS)]


Nested: TypeAlias = list[Any] | tuple[Any, ...] | dict[Any, Any]  # of values of any kind


def _holds_tensor(value: Nested, depth: int = 0) -> bool:
    items = value.values() if isinstance(value, dict) else value
    for item in items:
        if isinstance(item, torch.Tensor):
            return True
        if isinstance(item, (list, tuple, dict)) and depth < 8 and _holds_tensor(item, depth + 1):
            return True
    return False
