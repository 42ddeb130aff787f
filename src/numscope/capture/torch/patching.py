"""Monkeypatches: attributes of torch that something of ours stands in for while a job is watched.

All of them can be set aside for a while: whoever looks at torch's own functions then, as Dynamo does when it traces a
region, finds what it would find without us.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from numscope.capture.torch.thread import Undo

_standing: list[_Replacement] = []  # in the order in which they were made
_lock = threading.RLock()
_aside = 0  # how many stretches set them aside now


class _Replacement:
    """Something of ours in the place of an attribute."""

    __slots__ = ("_name", "_new", "_ours", "_own", "_owner", "in_place")

    def __init__(self, owner: object, name: str, new: object) -> None:
        self._owner, self._name, self._new = owner, name, new
        self._own = vars(owner).get(name)  # as it stands in a class; what is inherited comes back by itself
        self._ours: object = None
        self.in_place = False
        self.put()

    def put(self) -> None:
        """Put ours in the place, unless somebody else has put something there since."""
        if not self.in_place and vars(self._owner).get(self._name) is self._own:
            setattr(self._owner, self._name, self._new)
            self._ours = vars(self._owner)[self._name]
            self.in_place = True

    def take_away(self) -> None:
        """Put the attribute back; where somebody else has replaced ours since, theirs stays."""
        if not self.in_place or vars(self._owner).get(self._name) is not self._ours:
            return
        self.in_place = False
        if self._own is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)


def replace(owner: object, name: str, new: object) -> Undo:
    """Put something in the place of an attribute; return what puts the attribute back.

    Where somebody else has replaced ours since, theirs stays.
    """
    replacement = _Replacement(owner, name, new)
    with _lock:
        _standing.append(replacement)

    def undo() -> None:
        with _lock:
            if replacement in _standing:
                _standing.remove(replacement)
                replacement.take_away()

    return undo


def set_aside() -> None:
    """Put all attributes back, up to `put_back`."""
    global _aside
    with _lock:
        _aside += 1
        if _aside == 1:
            for replacement in reversed(_standing):  # one may stand in for what another has put there
                replacement.take_away()


def put_back() -> None:
    """Stand in for the attributes again, once no stretch sets them aside any more."""
    global _aside
    with _lock:
        _aside = max(_aside - 1, 0)
        if _aside == 0:
            for replacement in _standing:
                replacement.put()


@contextmanager
def aside() -> Iterator[None]:
    """Let others see torch's own attributes inside."""
    set_aside()
    try:
        yield
    finally:
        put_back()


def together(undo: Iterable[Undo]) -> Undo:
    """Return what undoes all of these, the last one first: one may stand in for what another has put there."""
    pending = list(undo)

    def all_of_it() -> None:
        while pending:
            pending.pop()()

    return all_of_it


def keep(owner: object, name: str, new: object) -> Undo:
    """Replace a function of Dynamo's or Inductor's own, which is not set aside while they compile."""
    original = vars(owner)[name]
    setattr(owner, name, new)

    def undo() -> None:
        if vars(owner).get(name) is new:
            setattr(owner, name, original)

    return undo


def when_imported(name: str, work: Callable[[], None]) -> Undo:
    """Do some work once a module has been imported, and keep ours away from it until then; return what ends that."""
    finder = _Finder(name, work)
    sys.meta_path.insert(0, finder)
    return finder.remove


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as Python would without it."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name = name
        self._work = work

    def remove(self) -> None:
        """Watch no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module, and do the work when it has been loaded."""
        if fullname != self._name:
            return None
        self.remove()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load, work = spec.loader.exec_module, self._work

            def exec_module(module: ModuleType) -> None:
                with aside():
                    load(module)
                work()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
