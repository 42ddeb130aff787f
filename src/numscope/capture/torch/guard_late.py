"""Flags that are read late: calls on a device are logged in their order, and judged when the counts have arrived.

A window is a stretch of the log. Its flags are copied to the host in one piece; with no `latency` set that copy is read
when the next window ends, so that the host never waits. What a call was given is found by storage and version: it was
looked at when it was made, or it is looked at now.
"""

from __future__ import annotations

from typing import Any

import torch

from numscope.capture.torch.flags import DeviceFlags, Pending, count
from numscope.capture.torch.guard_calls import Item, key_of, storage_of
from numscope.core.nonfinite import Counts

Tensor = torch.Tensor
_CLEAN = Counts()


class Window:
    """A stretch of the log, with the flags of its tensors on one device."""

    __slots__ = ("log", "pending", "storages")

    def __init__(self) -> None:
        self.log: list[tuple[Any, tuple[Any, ...]]] = []  # what judges, and its arguments
        self.pending: Pending | None = None
        self.storages: dict[int, Any] = {}

    def free(self) -> None:
        """Let addresses be used again."""
        for reference in self.storages.values():
            torch.UntypedStorage._free_weak_ref(reference)
        self.storages.clear()


class LateFlags:
    """The log of one process's device; a second device of the same process has its counts read at once."""

    def __init__(self, host: bool = False) -> None:
        self._host = host  # the host's tensors have flags too
        self._flags: DeviceFlags | None = None
        self._window = Window()
        self._waiting: list[Window] = []
        self._known: dict[tuple[int, int], tuple[int, int, Any]] = {}  # storage, version → first, last, (window, row)
        self._parameters: dict[
            int, tuple[int, tuple[int, int, Any]]
        ] = {}  # the same over all windows, the last version

    def __len__(self) -> int:
        return len(self._window.log)

    @property
    def full(self) -> bool:
        """Tell whether the window must end."""
        return self._flags is not None and self._flags.full

    def item(self, slot: str, tensor: Tensor, parameter: str = "", fresh: bool = False) -> Item:
        """Return a tensor in a slot, with the place of its flags; `fresh`: its version does not tell what was written."""
        return self.items([(slot, tensor, parameter)], fresh)[0]

    def items(self, slots: list[tuple[str, Tensor, str]], fresh: bool = False) -> list[Item]:
        """Return tensors in slots; those that were not looked at yet are, with as few launches as can be."""
        found: list[Item | None] = []
        new: list[tuple[int, Tensor, tuple[int, int], int, int]] = []
        for slot, tensor, parameter in slots:
            storage = storage_of(tensor)
            at_once = (tensor.is_cpu and not self._host) or (
                self._flags is not None and tensor.device != self._flags.device
            )
            if storage is None or at_once:
                key = storage._cdata if storage is not None else 0
                found.append(Item(slot, key, count(tensor), None, parameter, tensor))
                continue
            address = storage._cdata
            try:
                key = (address, tensor._version)
            except RuntimeError:
                key = (address, -1)
            start, stop = _extent(tensor)
            known = self._known.get(key)
            if known is None and parameter and self._parameters.get(address, (-1,))[0] == key[1]:
                known = self._parameters[address][1]
            if known is not None and not fresh and key[1] >= 0 and known[0] <= start and stop <= known[1]:
                counts = None if known[2] else _CLEAN
                found.append(Item(slot, address, counts, known[2], parameter, tensor if parameter else None))
                continue
            if address not in self._window.storages:
                self._window.storages[address] = storage._weak_ref()
            new.append((len(found), tensor, key, start, stop))
            found.append(None)
        if new:
            self._look(slots, found, new)
        return found  # type: ignore[return-value]

    def _look(self, slots: list[tuple[str, Tensor, str]], found: list[Item | None], new: list[Any]) -> None:
        if self._flags is None:
            self._flags = DeviceFlags(new[0][1].device)
        if len(new) > 3:
            rows = self._flags.add_all([tensor for _, tensor, *_ in new])
        else:
            rows = [self._flags.add(tensor) for _, tensor, *_ in new]
        for row, (index, tensor, key, start, stop) in zip(rows, new):
            slot, _, parameter = slots[index]
            place = (self._window, row) if row >= 0 else None
            whole = stop - start == tensor.numel()
            entry = (start, stop if whole else start, place)
            if whole or key not in self._known:
                self._known[key] = entry
                if parameter:
                    self._parameters[key[0]] = (key[1], entry)
            counts = None if place else _CLEAN
            found[index] = Item(slot, key[0], counts, place, parameter, tensor if parameter else None)

    def same(self, slot: str, tensor: Tensor, source: Item) -> Item:
        """Return a tensor that is finite exactly where its source is: the source's flags are its own."""
        storage = storage_of(tensor)
        if storage is None or source.flags is None:
            return self.item(slot, tensor)
        address = storage._cdata
        if address not in self._window.storages:
            self._window.storages[address] = storage._weak_ref()
        self._known[address, tensor._version] = (*_extent(tensor), source.flags)
        return Item(slot, address, None, source.flags)

    def before(self, slot: str, tensor: Tensor, version: int) -> Item:
        """Return what a tensor was at an earlier version, if it was looked at then; else nothing was found in it."""
        address = key_of(tensor)
        known = self._known.get((address, version))
        return Item(slot, address, None, known[2]) if known is not None and known[2] else Item(slot, address, _CLEAN)

    @property
    def in_use(self) -> bool:
        """Tell whether there is a device with flags."""
        return self._flags is not None

    def log(self, judge: Any, *arguments: Any) -> None:
        """Remember a call to be judged."""
        self._window.log.append((judge, arguments))

    def end(self) -> None:
        """End the window; its flags set out for the host."""
        window, self._window = self._window, Window()
        self._known.clear()
        if self._flags is None:
            return
        window.pending = self._flags.take()
        self._waiting.append(window)

    def read(self, wait: bool) -> None:
        """Judge the windows whose flags are here; with `wait`, all of them."""
        while self._waiting and (wait or len(self._waiting) > 1 or self._waiting[0].pending.ready):  # type: ignore[union-attr]
            window = self._waiting.pop(0)
            assert window.pending is not None
            try:
                if window.pending.struck():
                    for judge, arguments in window.log:
                        judge(*arguments)
            finally:
                window.free()

    def clear(self) -> None:
        """Forget all."""
        for window in [*self._waiting, self._window]:
            window.free()
        self._waiting.clear()
        self._window = Window()
        self._known.clear()
        self._parameters.clear()


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first element of the storage that a tensor shows, and the one after its last."""
    start = int(tensor.storage_offset())
    if tensor.is_contiguous():
        return start, start + tensor.numel()
    if tensor.numel() == 0:
        return start, start
    return start, start + 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))


def immediate(slot: str, tensor: Tensor, parameter: str = "") -> Item:
    """Return a tensor in a slot with its counts, read at once."""
    return Item(slot, key_of(tensor), count(tensor), None, parameter, tensor)
