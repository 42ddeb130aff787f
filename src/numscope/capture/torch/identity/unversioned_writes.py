"""Writes that raise no version counter and that no mode sees: everything that may make such writes is watched, in all threads.

Most of torch raises the version counter. These do not, or need not: code that was handed a tensor's memory (its address, its
numpy array, its `.data`), a few of torch's own operators, operators and autograd Functions from outside torch, code that sets
versions back, compiled regions (see `levels/compiled.py`), and replayed CUDA graphs. Tensors that they may have
written are measured again at the next look. At level `module`, where no mode is on, all of them are watched, so that
parameters can be carried over from step to step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from types import GetSetDescriptorType

import torch

from numscope.capture.torch.levels.compiled import is_tracing
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.patching import replace, together
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch
from numscope.core.operators import Trait, names_with, operator

_PYTHON = {"__array__", "__cuda_array_interface__", "storage"}  # written in Python: they call the other methods
_UNVERSIONED = ("_amp_", "_fused_")  # prefixes of torch's own operators that raise no version
_UNVERSIONED_FUNCTIONS = tuple(name for name in dir(torch) if name.startswith(_UNVERSIONED))
_OF_TORCH = ("aten::", "prim::", "prims::")

_Call = Callable[..., object]


class ExposedMemory:
    """Watches for tensors that hand out their memory: no operator does that, so a dispatch mode sees nothing of it.

    From then on the tensor is measured at each look, as at the levels where a function mode sees these calls.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def install(self) -> Undo:
        """Replace the methods and attributes of `Tensor` that hand out memory; return a function that puts them back."""
        return together(self._replace(name) for name in sorted(names_with(Trait.EXPOSES) - _PYTHON))

    def _replace(self, name: str) -> Undo:
        original = getattr(torch.Tensor, name)
        if isinstance(original, GetSetDescriptorType):
            return replace(torch.Tensor, name, self._attribute(name, original))
        return replace(torch.Tensor, name, self._method(name, original))

    def _method(self, name: str, original: _Call) -> _Call:
        expose = self._expose(name)

        @functools.wraps(original)
        def call(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
            expose(tensor)
            return original(tensor, *args, **kwargs)

        return call

    def _attribute(self, name: str, original: GetSetDescriptorType) -> property:
        expose = self._expose(name)

        def get(tensor: torch.Tensor) -> object:
            expose(tensor)
            return original.__get__(tensor)

        def put(tensor: torch.Tensor, value: object) -> None:
            expose(tensor)
            original.__set__(tensor, value)

        return property(get, put, original.__delete__, original.__doc__)

    def _expose(self, name: str) -> Callable[[torch.Tensor], None]:
        watch, storage_only = self._watch, Trait.EXPOSES_STORAGE in operator(name).traits

        def expose(tensor: torch.Tensor) -> None:
            if watch.on and not watch.thread.here.busy:
                watch.tensors.mark_unversioned(tensor, storage_only=storage_only)

        return expose


class SetVersions:
    """Watches for code that sets versions of tensors: their versions can no longer be trusted."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def install(self) -> Undo:
        """Replace the function that sets versions; return a function that puts it back."""
        owner: object = torch._C._autograd
        name = "_unsafe_set_version_counter"
        return _follow(self._watch, owner, name) if hasattr(owner, name) else lambda: None


class ForeignFunctions:
    """Watches autograd Functions from outside torch: their kernels may write to their inputs."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def install(self) -> Undo:
        """Replace `Function.apply`; return a function that puts it back."""
        original: _Call = vars(torch.autograd.Function)["apply"].__func__
        watch = self._watch

        def apply(cls: type, /, *args: object, **kwargs: object) -> object:
            try:
                return original(cls, *args, **kwargs)
            finally:
                if not cls.__module__.startswith("torch."):
                    _note_possible_writes(watch, args, kwargs)

        return replace(torch.autograd.Function, "apply", classmethod(apply))


class GraphReplays:
    """Watches for replays of CUDA graphs: their kernels may write to any memory."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def install(self) -> Undo:
        """Replace `CUDAGraph.replay`; return a function that puts it back."""
        graphs = torch.cuda.CUDAGraph
        watch, original = self._watch, graphs.replay

        def replay(graph: torch.cuda.CUDAGraph) -> None:
            original(graph)
            watch.tensors.remeasure_everything()

        return replace(graphs, "replay", replay)


class UnversionedWrites:
    """Watches for all writes that raise no version, for a level without a mode."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._parts = ExposedMemory(watch), SetVersions(watch), ForeignFunctions(watch)

    def install(self) -> Undo:
        """Replace everything that may write without a new version; return a function that puts it back."""
        watch, operators = self._watch, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
        undo = [part.install() for part in self._parts]
        undo += [_follow(watch, torch, name) for name in _UNVERSIONED_FUNCTIONS]
        undo += [_follow(watch, kind, "__call__", _is_foreign) for kind in operators]
        return together(undo)


def _follow(watch: Watch, owner: object, name: str, may_write: Callable[[object], bool] | None = None) -> Undo:
    """Measure a function's arguments anew after each call, or where `may_write` of its first argument."""
    original: _Call = getattr(owner, name)

    def call(*args: object, **kwargs: object) -> object:
        try:
            return original(*args, **kwargs)
        finally:
            if may_write is None or may_write(args[0]):
                _note_possible_writes(watch, args, kwargs)

    return replace(owner, name, call)


def _note_possible_writes(watch: Watch, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Measure tensors anew at each look while their versions stay; an optimizer's tensors are when its step ends."""
    here = watch.thread.here
    if watch.on and not (here.busy or here.quiet or is_tracing()):
        with OwnCode(watch, "unversioned writes"):
            watch.tensors.note_foreign_use(list(_tensors((args, *kwargs.values()))))


def _is_foreign(function: object) -> bool:
    """Tell whether an operator is from outside torch, or raises no version."""
    name: str = getattr(function, "_qualified_op_name", "") or getattr(function, "_name", "")
    return not name.startswith(_OF_TORCH) or name.partition("::")[2].startswith(_UNVERSIONED)


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """Yield the tensors among values, in lists, tuples and dictionaries, too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
