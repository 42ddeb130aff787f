"""What gives a tensor's memory away, at level `aten`: no operator does that, so that a dispatch mode sees none of it.

Whoever has a tensor's address, its numpy array or its `.data` may write to it without a new version, and outside of torch.
From then on the memory is measured each time, as at the levels whose function mode sees these calls.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from numscope.capture.torch.patching import replace, together
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch
from numscope.core.operators import Trait, names_with, operator

_PYTHON = {"__array__", "__cuda_array_interface__", "storage"}  # they call the others


class Exposures:
    """Sees, in all threads, that a tensor's memory is given away."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def install(self) -> Undo:
        """Replace the methods and attributes of `Tensor` that do; return what puts them back."""
        return together(self._replace(name) for name in sorted(names_with(Trait.EXPOSES) - _PYTHON))

    def _replace(self, name: str) -> Undo:
        plain = getattr(torch.Tensor, name)
        new = self._method(name, plain) if callable(plain) else self._attribute(name, plain)
        return replace(torch.Tensor, name, new)

    def _method(self, name: str, plain: Any) -> Any:
        thread, tell = self._watch.thread, self._tell(name)

        @functools.wraps(plain)
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if not thread.here.busy:
                tell(tensor)
            return plain(tensor, *args, **kwargs)

        return call

    def _attribute(self, name: str, plain: Any) -> property:
        thread, tell = self._watch.thread, self._tell(name)

        def get(tensor: torch.Tensor) -> Any:
            if not thread.here.busy:
                tell(tensor)
            return plain.__get__(tensor)

        def put(tensor: torch.Tensor, value: Any) -> None:
            if not thread.here.busy:
                tell(tensor)
            plain.__set__(tensor, value)

        return property(get, put, plain.__delete__, plain.__doc__)

    def _tell(self, name: str) -> Any:
        watch, storage_only = self._watch, Trait.EXPOSES_STORAGE in operator(name).traits

        def tell(tensor: torch.Tensor) -> None:
            if watch.on:
                watch.tensors.distrust(tensor, storage_only=storage_only)

        return tell
