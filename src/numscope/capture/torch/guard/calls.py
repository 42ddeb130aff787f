"""What the guard remembers: one call, the tensors whose non-finite state is known, and the ring of the last calls."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from numscope.capture.interned import Series
from numscope.capture.torch.thread import Open
from numscope.nonfinite.rule import Counts, State

Tensor = torch.Tensor


class Seen:
    """One call, with no more than its place: its name is made when somebody asks for it."""

    __slots__ = (
        "aside", "at_once", "came", "in_backward", "kind", "number", "op", "parent", "series", "site", "transmits",
        "wrong",
    )  # fmt: skip

    def __init__(
        self, series: Series, number: int, kind: str, op: str, parent: Open | None, site: int, transmits: bool = False,
        in_backward: bool = False,
    ) -> None:  # fmt: skip
        self.series = series
        self.number = number
        self.kind = kind
        self.op = op
        self.parent = parent
        self.site = site
        self.in_backward = (
            in_backward  # the engine runs it: a recomputation, or the backward of the user's own Function
        )
        self.transmits = transmits  # where its result is finite, so was what it was given
        self.aside = False  # no gradient flows through it, and no model runs: a metric, say
        self.at_once = True  # an infinity it makes counts at once: gradients will flow through it, or no model runs
        self.wrong = False  # its forward had something non-finite that nobody meant
        self.came: Any = ()  # gradients that came into it, where it is a module: wrong ones, or the looks at all of them

    def name(self, phase: str) -> int:
        """Return the interned name of this call in a phase."""
        return self.series.name(self.number, phase)


class OpenCall(Open):
    """A call that has begun, has calls inside it, and can be named."""

    __slots__ = ("outer", "seen")
    seen: Seen
    outer: Open | None  # the call that it runs in


class OpenModule(OpenCall):
    """The same, of a module."""

    __slots__ = ()


def runs_inside(seen: Seen, outer: Seen) -> bool:
    """Tell whether one call was made inside another."""
    around = seen.parent
    while isinstance(around, OpenCall):
        if around.seen is outer:
            return seen is not outer
        around = around.outer
    return False


class Item(NamedTuple):
    """A tensor in a slot of a call: the storage it lies in, and its counts, or the look that will have them."""

    slot: str
    key: int
    counts: Counts | None
    look: Any = None
    parameter: str = ""
    tensor: Any = None  # or a weak reference to it
    version: int | None = None  # that the tensor had; None: it is as it was

    def found(self) -> Counts:
        """Return the counts."""
        return self.counts if self.counts is not None else self.look.counts()


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
    """A call in the ring. On the CPU it has its tensors, with the versions they had; elsewhere the looks at them."""

    __slots__ = ("constants", "inputs", "outputs", "phase", "seen", "size", "step", "window")

    def __init__(
        self, seen: Seen, phase: str, inputs: Any, outputs: Any, size: int, window: Any = None, constants: Any = ()
    ) -> None:
        self.seen = seen
        self.phase = phase
        self.inputs = inputs  # [(slot, tensor, version)], or [(slot, look)]
        self.outputs = outputs
        self.size = size  # bytes that it keeps alive
        self.window = window  # None: it was judged on the spot
        self.constants = constants
        self.step = 0  # the ring knows it

    @property
    def judged(self) -> bool:
        """Tell whether it is no origin, as far as is known."""
        return self.window is None or self.window.read

    def items(self, group: str) -> list[Item]:
        """Return its inputs or outputs to be judged."""
        return [
            Item(slot_text(group, slot), look.key, None, look, look.parameter, look.tensor)
            for slot, look in (self.inputs if group == "input" else self.outputs)
        ]

    def held(self, group: str) -> Iterator[tuple[str, Tensor | None, int | None]]:
        """Give its inputs or outputs with the versions that they had; None for a tensor that is no longer held."""
        for slot, *rest in self.inputs if group == "input" else self.outputs:
            tensor, version = rest if len(rest) == 2 else (rest[0].tensor, rest[0].version)
            yield slot_text(group, slot), resolve(tensor), version

    def let_go(self) -> None:
        """Keep nothing alive any more."""
        if self.window is None:
            self.inputs = self.outputs = ()
        for _, look in [*self.inputs, *self.outputs]:
            if not look.parameter:
                look.tensor = None
        self.size = 0


class Ring:
    """The last calls, and all that are not judged yet; what they keep alive is bounded in bytes."""

    def __init__(self, calls: int, size: int) -> None:
        self._entries: deque[Entry] = deque()
        self._holding: deque[Entry] = deque()
        self._calls = calls
        self.room = size
        self.step = 0  # of the calls that are added
        self._held = 0

    def add(self, entry: Entry) -> None:
        """Take a call in; the oldest make room."""
        entries, holding = self._entries, self._holding
        entry.step = self.step
        entries.append(entry)
        if entry.size:
            holding.append(entry)
            self._held += entry.size
            while self._held > self.room and (len(holding) > 1 or entry.window is not None):
                oldest = holding.popleft()
                self._held -= oldest.size
                if oldest is entries[0] and oldest.judged:
                    entries.popleft()
                oldest.let_go()
        while len(entries) > self._calls and entries[0].judged:
            oldest = entries.popleft()
            if oldest.size:
                holding.popleft()
                self._held -= oldest.size
                oldest.let_go()

    def grow(self, entry: Entry, size: int) -> bool:
        """Let a call of the ring keep more alive; tell whether it is still there and may."""
        if entry.size:
            entry.size += size
            self._held += size
        return entry.size > 0

    def last(self) -> Entry | None:
        """Return the call that was added last."""
        return self._entries[-1] if self._entries else None

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Let go of everything."""
        for entry in self._holding:
            entry.let_go()
        self._entries.clear()
        self._holding.clear()
        self._held = 0


def slot_text(group: str, slot: str | int) -> str:
    """Return a slot's name; positions are numbers."""
    return slot if isinstance(slot, str) else f"{group}.{slot}"


def storage_of(tensor: Tensor) -> Any:
    """Return a tensor's storage, a sparse one's that of its values, or None where it has none."""
    try:
        if tensor.layout is torch.sparse_coo:
            tensor = tensor._values()
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def key_of(tensor: Tensor) -> int:
    """Return what stands for a tensor's storage; 0 where it has none."""
    storage = storage_of(tensor)
    return storage._cdata if storage is not None else 0


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes that a tensor's numbers take."""
    if tensor.layout is torch.strided:
        return tensor.nbytes
    values = tensor._values() if tensor.layout is torch.sparse_coo else None
    return values.nbytes if values is not None else 0


def version_of(tensor: Tensor) -> int:
    """Return a tensor's version, -1 where it has none."""
    try:
        return tensor._version
    except RuntimeError:  # an inference tensor
        return -1


def resolve(held: Any) -> Tensor | None:
    """Return the tensor that the ring holds, or None where it is gone."""
    return held() if isinstance(held, weakref.ref) else held
