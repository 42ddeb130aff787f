"""An optimizer's step of torch's own, operator by operator: what one has written is what the next one reads.

At level `aten` an operator's results are measured before its versions rise, if they rise at all: a fused or foreach
operator's don't. Outside of an optimizer its results are measured anew at the next look, as the user's own code runs in
between, and may write to them with kernels that torch does not know of. Inside the step of one of torch's own optimizers no
such code runs: from the first operator on nothing writes to what it works on but its operators, and our mode sees those.
That an operator belongs to the step is read from its stack: between it and what calls the optimizer's hooks there is
no code but torch's own, so no closure, no hook, no step of a class that is derived from torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from types import CodeType, FrameType

import torch

from numscope.capture.torch.identity.tensors import Tensors
from numscope.capture.torch.thread import ThreadState

_version = attrgetter("_version")


class OptimizerStep:
    """The step of an optimizer that runs in a thread."""

    __slots__ = ("_code", "_rising", "_tensors", "_thread", "_versions")

    def __init__(self, tensors: Tensors, thread: ThreadState, code: CodeType) -> None:
        self._tensors = tensors
        self._thread = thread
        self._code = code  # that calls the hooks around the step, and the step
        self._rising: list[torch.Tensor] = []  # whose versions may rise when the mode has returned
        self._versions: list[int] = []  # and what they are before

    def covers(self, frame: FrameType | None) -> bool:
        """Tell whether an operator that this frame calls is one of the step's; if not, nothing is known any more."""
        while frame is not None and frame.f_code is not self._code:
            if not frame.f_globals.get("__name__", "").startswith("torch."):
                frame = None
                break
            frame = frame.f_back
        self.go_on(frame is not None)
        return frame is not None

    def go_on(self, sure: bool) -> None:
        """Take over the versions of what was written last: only its operator's own end can have raised them."""
        rising, self._rising = self._rising, []
        versions, self._versions = self._versions, []
        if not sure:
            self._tensors.forget_optimizer_writes()
            self._thread.here.known_tensors = None
            return
        if self._thread.here.known_tensors is None:
            self._thread.here.known_tensors = {}
        if list(map(_version, rising)) != versions:
            for tensor, version in zip(rising, versions):
                if tensor._version != version:
                    self._tensors.version_rose(tensor)

    def wrote(self, tensors: Sequence[torch.Tensor]) -> None:
        """Know that an operator of the step has just written to tensors."""
        versions = self._tensors.note_writes_at_once(tensors, by_optimizer=True) if len(tensors) > 1 else None
        if versions is None:
            tensors = [tensor for tensor in tensors if not tensor.is_inference()]
            versions = [tensor._version for tensor in tensors]
            for tensor in tensors:
                self._tensors.note_write(tensor, by_optimizer=True)
        self._rising += tensors
        self._versions += versions
