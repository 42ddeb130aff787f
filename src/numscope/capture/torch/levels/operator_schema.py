"""Operators by name and schema: the arguments that one reads, those that it writes to, the names of its calls."""

from __future__ import annotations

import threading
from typing import Any

import torch

from numscope.capture.recording.interned import Series
from numscope.capture.torch.levels.collectives import METHODS
from numscope.capture.torch.levels.function_names import Api
from numscope.capture.torch.slots import POSITIONS, Arguments, Keywords
from numscope.core.operators import Trait, operator

_NO_MODEL = {"profiler", "prim", "prims"}  # namespaces that hold no operators of a model
_NONE: set[int] = set()
_called: Any = getattr(torch._ops.OpOverload.__call__, "__code__", None)
_STRAIGHT = _called is not None and _called.co_names == ("_op",)  # to call an operator is to call this, no more


class Names:
    """The names of the successive calls of one operator in one phase: forward or backward."""

    __slots__ = ("_further", "_lock", "_names", "_phase", "_series", "coming")

    def __init__(self, series: Series, phase: str) -> None:
        self._series = series
        self._phase = phase
        self._names = series.backward if phase == "backward" else series.forward
        self._lock = threading.Lock()
        self._further = 0  # calls of the step whose names are not among those
        self.coming = iter(self._names)  # of the step; the hot path takes the next one itself, if there is one

    def begin_step(self) -> None:
        """Start anew."""
        self._further = 0
        self.coming = iter(self._names)

    def next(self) -> int:
        """Return the next name."""
        found = next(self.coming, -1)
        if found < 0:  # there were never as many
            with self._lock:
                before = len(self._names)
                found = self._series.name(before + self._further, self._phase)
                self._further += len(self._names) == before  # see `Strings.of_call`
                self.coming = iter(self._names)
                self.coming.__setstate__(len(self._names))  # type: ignore[attr-defined]
        return found


class Operator(Api):
    """The properties of one operator that capture depends on, read from its name and its schema."""

    __slots__ = (
        "aliases",
        "backward",
        "call",
        "forward",
        "func",
        "in_group",
        "key",
        "kind",
        "ordinary",
        "out",
        "reads",
        "scaled",
        "writes",
    )

    def __init__(self, func: Any) -> None:
        self.func = func  # whose id it is known by
        straight = _STRAIGHT and type(func) is torch._ops.OpOverload
        self.call = func._op if straight else func  # the same, without a frame of Python
        namespace, _, op = func._schema.name.partition("::")
        silent = Trait.UNRECORDED_ATEN in operator(op).traits or namespace in _NO_MODEL
        self.in_group = namespace == "c10d"  # of a process group: given memory to write to, and a Work to wait for
        collective = self.in_group or namespace.startswith("_c10d_functional")
        if namespace == "aten" or collective:
            super().__init__("Distributed" if collective else "Aten", op, func, silent)
        else:
            super().__init__("Ops", f"{namespace}.{op}", func, silent)
        self.kind = "collective" if collective else "aten"
        self.forward: Names  # the names of its calls, unless it is a collective
        self.backward: Names
        self.aliases = func.is_view  # its results are views, and will have the version of what they are views of
        self.views = self.views or self.aliases
        arguments = list(enumerate(func._schema.arguments))
        self.out = {item.name for _, item in arguments if item.is_out}  # written to and never read
        self.reads: tuple[int, ...] | None = None  # positions, where they are not all but `out`
        self.writes = [(place, item.name) for place, item in arguments if item.alias_info and item.alias_info.is_write]
        if self.in_group and op.rstrip("_") in METHODS:
            method = METHODS[op.rstrip("_")]
            self.reads = method.reads
            self.writes = [(place, "") for place in method.writes]
        self.writes_unversioned = self.writes_unversioned and not (self.writes or op.startswith("_fused_"))
        # A fused optimizer writes to the gradients only where it is given a scale to divide them by.
        self.scaled = (
            [place for place, item in arguments if item.name == "grads"] if op.startswith("_fused_ada") else []
        )

        shows = ["Tensor" in str(item.type) for _, item in arguments]  # a tensor, or a list of them
        # Torch's own, writes to nothing, fills what it returns: the compiled functions record such.
        self.ordinary = (
            namespace == "aten"
            and not silent
            and not (
                self.writes or self.writes_unversioned or self.uninitialized or self.overwrites or self.fills_a_part
            )
            and len(arguments) <= POSITIONS
            and (not self.aliases or (shows[0] and sum(shows) == 1 and Trait.LAZY_VIEW not in operator(op).traits))
        )
        self.key = 0  # which one it is, with room for the number of its arguments

    def inputs(self, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
        """Return those arguments that the operator reads."""
        if self.reads is not None:
            args = [args[place] for place in self.reads if place < len(args)]
        if self.out:
            kwargs = {name: value for name, value in kwargs.items() if name not in self.out}
        return args, kwargs

    def written(self, args: Arguments, kwargs: Keywords) -> list[object]:
        """Return those arguments that the operator may write to."""
        return [args[place] if place < len(args) else kwargs.get(name) for place, name in self.writes]

    def spared(self, args: Arguments, kwargs: Keywords) -> set[int]:
        """Return the ids of those tensors among them that it has only read."""
        if not self.scaled or kwargs.get("grad_scale") is not None:
            return _NONE
        lists = [args[place] for place in self.scaled if place < len(args)]
        return {id(tensor) for one in lists if isinstance(one, (list, tuple)) for tensor in one}
