"""What the guard remembers: one call, the tensors whose non-finite state is known, and the ring of the last calls."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from numscope.capture.recorder import Series
from numscope.capture.torch.watch import Open
from numscope.core.nonfinite import Counts, State

Tensor = torch.Tensor


class Seen:
    """One call, with no more than its place: its name is made when somebody asks for it."""

    __slots__ = ("kind", "number", "op", "parent", "phase", "series", "site", "wrong")

    def __init__(self, series: Series, number: int, kind: str, op: str, parent: Open | None, site: int) -> None:
        self.series = series
        self.number = number
        self.kind = kind
        self.op = op
        self.parent = parent
        self.site = site
        self.phase = "forward"
        self.wrong = False  # its forward had something non-finite that nobody meant

    def name(self, phase: str) -> int:
        """Return the interned name of this call in a phase."""
        return self.series.name(self.number, phase)


class OpenModule(Open):
    """A module call that has begun, and can be named."""

    __slots__ = ("seen",)
    seen: Seen


class Item(NamedTuple):
    """A tensor in a slot of a call: the storage it lies in, and its counts, or where they will be found."""

    slot: str
    key: int
    counts: Counts | None
    flags: Any = None  # (window, row) on a device
    parameter: str = ""
    tensor: Tensor | None = None

    def found(self) -> Counts:
        """Return the counts."""
        if self.counts is not None:
            return self.counts
        window, row = self.flags
        return window.pending.counts(row)  # type: ignore[no-any-return]


class Marks:
    """Why a storage holds something non-finite, for as long as it lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[State, Any]] = {}

    def set(self, tensor: Tensor | None, key: int, state: State) -> None:
        """Remember a storage's state; a weak reference keeps its address from being another's."""
        known = self._known.get(key)
        if known is not None:
            self._known[key] = (state, known[1])
        elif tensor is not None and key:
            storage = storage_of(tensor)
            self._known[key] = (state, storage._weak_ref() if storage is not None else None)
        elif key:
            self._known[key] = (state, None)

    def adopt(self, key: int, state: State, reference: Any) -> None:
        """Remember a storage's state by a weak reference that is now ours."""
        known = self._known.get(key)
        if known is not None and reference is not None:
            torch.UntypedStorage._free_weak_ref(reference)
        self._known[key] = (state, known[1] if known is not None else reference)

    def get(self, key: int) -> State | None:
        """Return a storage's state, or None where nothing non-finite was seen in it."""
        known = self._known.get(key)
        return known[0] if known is not None else None

    def __len__(self) -> int:
        return len(self._known)

    def drop(self, key: int) -> None:
        """Forget one storage: what it holds is finite now."""
        known = self._known.pop(key, None)
        if known is not None and known[1] is not None:
            torch.UntypedStorage._free_weak_ref(known[1])

    def forget(self) -> None:
        """Forget storages that are gone."""
        if not self._known:
            return
        for key, (_, reference) in list(self._known.items()):
            if reference is None or torch.UntypedStorage._expired(reference):
                del self._known[key]
                if reference is not None:
                    torch.UntypedStorage._free_weak_ref(reference)


class Entry:
    """A call in the ring: its tensors, strongly or weakly, with the versions they had."""

    __slots__ = ("inputs", "outputs", "phase", "seen", "size")

    def __init__(self, seen: Seen, phase: str, inputs: Any, outputs: Any, size: int) -> None:
        self.seen = seen
        self.phase = phase
        self.inputs = inputs  # [(slot, tensor or weak reference, version)]
        self.outputs = outputs
        self.size = size


class Ring:
    """The last calls, bounded in number and in the bytes that it alone may keep alive."""

    def __init__(self, calls: int, size: int) -> None:
        self._entries: deque[Entry] = deque()
        self._calls = calls
        self._room = size
        self._held = 0

    def add(self, entry: Entry) -> None:
        """Take a call in; the oldest make room."""
        entries = self._entries
        entries.append(entry)
        self._held += entry.size
        while len(entries) > self._calls or (self._held > self._room and len(entries) > 1):
            self._held -= entries.popleft().size

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Let go of everything."""
        self._entries.clear()
        self._held = 0


def storage_of(tensor: Tensor) -> Any:
    """Return a tensor's storage, or None where it has none."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def key_of(tensor: Tensor) -> int:
    """Return what stands for a tensor's storage; 0 where it has none."""
    storage = storage_of(tensor)
    return storage._cdata if storage is not None else 0


def resolve(held: Any) -> Tensor | None:
    """Return the tensor that the ring holds, or None where it is gone."""
    return held() if isinstance(held, weakref.ref) else held
