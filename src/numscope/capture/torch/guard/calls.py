"""A call of a guarded job, and the calls and modules that it runs inside."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch

from numscope.capture.recording.interned import Series
from numscope.capture.torch.thread import Open
from numscope.nonfinite.rule import Counts
from numscope.nonfinite.tracker import TrackedCall

Tensor = torch.Tensor
HeldTensor = (
    Tensor | weakref.ref[Tensor] | None
)  # a tensor that the guard keeps alive, or knows for as long as others do


class Counted(Protocol):
    """A tensor whose non-finite elements are counted, or will be."""

    @property
    def counts(self) -> Counts:
        """How many of its elements are not finite."""


class LiveCall:
    """One call. Its name is made when somebody asks for it."""

    __slots__ = (
        "aside",
        "flows",
        "in_backward",
        "incoming",
        "kind",
        "number",
        "op",
        "parent",
        "series",
        "site",
        "transmits",
        "wrong",
    )
    order = 0  # nobody asks a guard for the chain of calls
    unmeasured = ""

    def __init__(
        self,
        series: Series,
        number: int,
        kind: str,
        op: str,
        parent: Open | None,
        site: int,
        transmits: bool = False,
        in_backward: bool = False,
    ) -> None:
        self.series = series
        self.number = number
        self.kind = kind
        self.op = op
        self.parent = parent
        self.site = site
        self.transmits = transmits  # where its result is finite, so was what it was given
        self.in_backward = in_backward  # the engine runs it: a recomputation, or backward of the user's own Function
        self.aside = False  # no model runs, and no gradient flows through its result: a metric, say
        self.flows = True  # gradients flow through its result, or no model runs: an infinity in it counts at once
        self.wrong: TrackedCall | None = None  # the tracker's
        self.incoming: Sequence[Counted] = ()  # gradients that came into a module: wrong ones, or all with their looks

    def name(self, phase: str) -> int:
        """Return the interned name of this call in a phase."""
        return self.series.name(self.number, phase)

    def enclosing(self) -> Iterator[LiveCall]:
        """Return the calls that it runs inside, the innermost first."""
        outer = self.parent
        if isinstance(outer, OpenCall) and outer.call is self:  # an open module is the parent of its own call
            outer = outer.outer
        while isinstance(outer, OpenCall):
            yield outer.call
            outer = outer.outer

    def calling_module(self) -> LiveCall | None:
        """Return the module in whose own code a module was called; None for any other call."""
        if self.kind != "module" or not isinstance(self.parent, OpenModule):
            return None
        outer = self.parent.outer
        return outer.call if isinstance(outer, OpenModule) else None


class Given:
    """The arguments of a call, as they were before it."""

    __slots__ = ("args", "kwargs", "saved", "tensors", "versions", "was_finite")

    def __init__(
        self, args: Sequence[object], kwargs: Mapping[str, object], tensors: list[Tensor], versions: list[int]
    ) -> None:
        self.args = args
        self.kwargs = kwargs
        self.tensors = tensors  # the positional ones
        self.versions = versions  # of these
        # A call in place can't be asked afterwards what it was given:
        self.was_finite = True  # the tensor that it overwrites
        self.saved: Tensor | None = None  # a copy of that


class OpenCall(Open):
    """A call that has begun and not ended, with calls inside it."""

    __slots__ = ("call", "outer")
    call: LiveCall
    outer: Open | None  # the call that it runs in


class OpenModule(OpenCall):
    """The call of a module that has begun and not ended."""

    __slots__ = ()


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
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
    return int(storage._cdata) if storage is not None else 0


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes that a tensor's numbers take."""
    if tensor.layout is torch.strided:
        return tensor.nbytes
    return tensor._values().nbytes if tensor.layout is torch.sparse_coo else 0


def version_of(tensor: Tensor) -> int:
    """Return a tensor's version counter, -1 where it has none."""
    try:
        return tensor._version
    except RuntimeError:  # an inference tensor
        return -1


def resolve(held: HeldTensor) -> Tensor | None:
    """Return the tensor that is held, or None where it is gone."""
    return held() if isinstance(held, weakref.ref) else held
