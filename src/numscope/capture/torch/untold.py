"""What may write to a tensor without a new version, at level `module`: no mode is on that would see it.

Between two steps parameters are believed to be what the optimizer has left only while all that writes to them is seen. Most
of torch raises a version. The rest is seen here, in all threads: who is given a tensor's memory (`exposed.py`), torch's
own operators that tell nobody, operators and functions that are not torch's, versions that are put back, and compiled regions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from numscope.capture.torch.compiled import is_tracing
from numscope.capture.torch.exposed import Exposures
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


class Untold:
    """Sees what writes to tensors and raises no version, or may; what was measured of them is then forgotten."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._exposures = Exposures(watch)
        self._switches: Any = None  # dynamo's module, whose switch is seen

    @property
    def sees_all(self) -> bool:
        """Tell whether compiled regions are seen, too: dynamo may have been loaded since."""
        return sys.modules.get(_SWITCHES) is self._switches

    def install(self) -> Undo:
        """Replace all that may write untold; return what puts it back."""
        operators: Any = torch._ops
        undo = [
            self._exposures.install(),
            Versions(self._watch).install(),
            *(_follow(self._watch, torch, name) for name in _SILENT_ONES),
            *(self._operators(kind) for kind in (operators.OpOverload, operators.OpOverloadPacket)),
            self._functions(),
        ]
        self._switches = sys.modules.get(_SWITCHES)
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            if hasattr(self._switches, name):
                undo.append(self._regions(name))

        def all_of_it() -> None:
            while undo:
                undo.pop()()

        return all_of_it

    def _operators(self, kind: Any) -> Undo:
        plain, forget = kind.__call__, self._forget

        def __call__(operator: Any, /, *args: Any, **kwargs: Any) -> Any:
            if _is_foreign(operator):
                forget(args, kwargs)
            return plain(operator, *args, **kwargs)

        return _replace(kind, "__call__", __call__)

    def _functions(self) -> Undo:
        original = torch.autograd.Function.__dict__["apply"]
        plain, forget = original.__func__, self._forget

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            forget(args, kwargs)
            return plain(cls, *args, **kwargs)

        return _replace(torch.autograd.Function, "apply", classmethod(apply))

    def _regions(self, name: str) -> Undo:
        """Forget everything where dynamo begins to run a region."""
        plain, tensors = getattr(self._switches, name), self._watch.tensors

        def switch(callback: Any) -> Any:
            if callback is not None and callback is not False:
                tensors.unsettle_all()
            return plain(callback)

        return _replace(self._switches, name, switch)

    def _forget(self, args: Any, kwargs: Any) -> None:
        """Measure these tensors anew in the next step: what is not torch's own may write to them."""
        tensors = self._watch.tensors
        if tensors.any_settled and not (self._watch.thread.here.busy or is_tracing()):
            tensors.unsettle(*_tensors((args, *kwargs.values())))


def _follow(watch: Watch, owner: Any, name: str) -> Undo:
    """Have the tensors that a function is given measured anew; those of an optimizer's step are so when it ends."""
    plain = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        finally:
            here = watch.thread.here
            if watch.on and not (here.busy or here.quiet or is_tracing()):
                watch.tensors.written_unseen(list(_tensors((args, *kwargs.values()))))

    return _replace(owner, name, call)


def _is_foreign(operator: Any) -> bool:
    """Tell whether an operator is not torch's own, or one that raises no version."""
    name: str = getattr(operator, "_qualified_op_name", None) or operator._schema.name
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


def _replace(owner: Any, name: str, new: Any) -> Undo:
    """Put something in the place of an attribute; return what puts that back."""
    own = vars(owner).get(name)
    setattr(owner, name, new)
    return lambda: delattr(owner, name) if own is None else setattr(owner, name, own)
