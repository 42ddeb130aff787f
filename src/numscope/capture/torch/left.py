"""An optimizer's step of torch's own, operator by operator: what one has written is what the next one reads.

At level `aten` an operator's results are measured before its versions rise, if they rise at all: a fused or foreach
operator's don't. Outside of an optimizer its results are measured anew at the next look, as the user's own code runs in
between, and may write to them with kernels that torch does not know of. Inside the step of one of torch's own optimizers no
such code runs: from the first operator on nothing writes to what it works on but its operators, and our mode sees those.
That an operator belongs to the step is read from its stack: between it and what calls the optimizer's hooks there is
no code but torch's own, so no closure, no hook, no step of a class that is derived from torch's.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

from numscope.capture.torch.tensors import Tensors


class Stepping:
    """The step of an optimizer that runs in a thread."""

    __slots__ = ("_code", "_rising", "_tensors")

    def __init__(self, tensors: Tensors, code: CodeType) -> None:
        self._tensors = tensors
        self._code = code  # that calls the hooks around the step, and the step
        self._rising: list[tuple[torch.Tensor, int]] = []  # versions that may rise when the mode has returned

    def covers(self, frame: Any) -> bool:
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
        if not sure:
            self._tensors.forget_left()
            return
        for tensor, version in rising:
            if tensor._version != version:
                self._tensors.has_risen(tensor)

    def wrote(self, tensor: torch.Tensor) -> None:
        """Know that an operator of the step has just written to a tensor."""
        if not tensor.is_inference():
            self._tensors.overwritten(tensor, by_optimizer=True)
            self._rising.append((tensor, tensor._version))
