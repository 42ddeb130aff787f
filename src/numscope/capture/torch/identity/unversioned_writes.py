"""What may write to a tensor without a new version, where no mode sees it: at level `module` none is on.

Most of torch raises a version. The rest is seen here, in all threads: who is given a tensor's memory (`exposed.py`), torch's
own operators that tell nobody, operators and functions that are not torch's, versions that are put back, and compiled
regions. What they were given is measured again at the next look; and as all that writes is seen, parameters are believed
to be what an optimizer has left, from one step to the next.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from numscope.capture.torch.identity.exposed_memory import Exposures
from numscope.capture.torch.levels.compiled import is_tracing
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.patching import replace, together
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch

_SILENT = ("_amp_", "_fused_")  # what torch's own operators begin with that raise no version
_SILENT_ONES = tuple(name for name in dir(torch) if name.startswith(_SILENT))
_OWN = ("aten::", "prim::", "prims::")
_SWITCHES = "torch._dynamo.eval_frame"


class Versions:
    """Sees that tensors are given other versions than their own: what they hold is not known by them any more."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def install(self) -> Undo:
        """Replace the function that sets versions; return what puts it back."""
        found: Any = torch._C._autograd
        name = "_unsafe_set_version_counter"
        return _follow(self._watch, found, name) if hasattr(found, name) else lambda: None


class ForeignFunctions:
    """Sees autograd Functions that are not torch's own: their kernels may write to what they are given, and tell nobody."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def install(self) -> Undo:
        """Replace `Function.apply`; return what puts it back."""
        original = torch.autograd.Function.__dict__["apply"]
        plain, watch = original.__func__, self._watch

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return plain(cls, *args, **kwargs)
            finally:
                if not cls.__module__.startswith("torch."):
                    _doubt(watch, args, kwargs)

        return replace(torch.autograd.Function, "apply", classmethod(apply))


class Untold:
    """Sees what writes to tensors and raises no version, or may: what was measured of them is then forgotten."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._parts = Exposures(watch), Versions(watch), ForeignFunctions(watch)
        self._switches: Any = None  # dynamo's module, whose switch is seen

    @property
    def sees_all(self) -> bool:
        """Tell whether compiled regions are seen, too: dynamo may have been loaded since."""
        return sys.modules.get(_SWITCHES) is self._switches

    def install(self) -> Undo:
        """Replace all that may write untold; return what puts it back."""
        watch, operators = self._watch, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
        undo = [part.install() for part in self._parts]
        undo += [_follow(watch, torch, name) for name in _SILENT_ONES]
        undo += [_follow(watch, kind, "__call__", _is_foreign) for kind in operators]
        self._switches = sys.modules.get(_SWITCHES)
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            if hasattr(self._switches, name):
                undo.append(self._regions(name))
        return together(undo)

    def _regions(self, name: str) -> Undo:
        """Forget everything where dynamo begins to run a region."""
        plain, tensors = getattr(self._switches, name), self._watch.tensors

        def switch(callback: Any) -> Any:
            if callback is not None and callback is not False:
                tensors.unsettle_all()
            return plain(callback)

        return replace(self._switches, name, switch)


def _follow(watch: Watch, owner: Any, name: str, asks: Callable[[Any], bool] | None = None) -> Undo:
    """Have what a function is given measured anew, always or where it `asks` so of its first argument."""
    plain = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        finally:
            if asks is None or asks(args[0]):
                _doubt(watch, args, kwargs)

    return replace(owner, name, call)


def _doubt(watch: Watch, args: Any, kwargs: Any) -> None:
    """Measure tensors anew each time, while their versions stay; those of an optimizer's step are so when it ends."""
    here = watch.thread.here
    if watch.on and not (here.busy or here.quiet or is_tracing()):
        with OwnCode(watch, "untold"):
            watch.tensors.given_to_others(list(_tensors((args, *kwargs.values()))))


def _is_foreign(operator: Any) -> bool:
    """Tell whether an operator is not torch's own, or one that raises no version."""
    name: str = getattr(operator, "_qualified_op_name", "") or getattr(operator, "_name", "")
    return not name.startswith(_OWN) or name.partition("::")[2].startswith(_SILENT)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Return the tensors among values, in lists and tuples, too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
